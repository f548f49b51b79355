package inspect

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Inspector inspects the node that it runs on. It changes nothing.
type Inspector struct {
	Conf     *config.Node // in effect
	Fault    error        // of its file, if the agent serves by the one before
	ReadFile func(path string) ([]byte, error)
	// CNIConf and CNIBin are the folders of the runtime's networks and of its plugins. Only the doctor needs them.
	CNIConf, CNIBin string
}

func (in *Inspector) socket() string {
	return filepath.Join(in.Conf.StateDir, nodestate.AgentSocketName)
}

// basics is what every view of a node starts from. Each error is why the field before it is missing.
type basics struct {
	want     plan.Plan // what the node should be by the configuration, for the back end that its rules are in
	faults   []error   // of the plan
	up       upstream.Upstreams
	agent    *node.Status // of the running agent; nil: see agentErr
	agentErr error

	kind    rules.Kind // of the node's rules
	kindErr error

	host     rules.Rules // nil if it cannot be opened; close closes it
	present  bool        // the host table exists
	leases   []steer.LeaseState
	tableErr error // of the three above

	pods *pods.Pods
}

func (in *Inspector) collect(ctx context.Context) *basics {
	f := new(basics)
	f.kind, f.kindErr = Installed(in.Conf.StateDir)
	var readErr, kindErr error
	f.want, f.up, readErr = plan.Read(in.Conf, in.ReadFile, "doctor")
	f.want, kindErr = f.want.ForBackend(f.kind)
	for _, err := range []error{readErr, kindErr, f.kindErr} {
		if err != nil {
			f.faults = append(f.faults, err)
		}
	}
	f.agent, f.agentErr = readAgent[*node.Status](ctx, in.socket(), "/status")
	f.pods = pods.Open(f.want.Folders.State, f.kind, slog.New(slog.DiscardHandler))
	if f.want.KernelOnly() {
		return f // there are no rules
	}
	if f.host, f.tableErr = f.kind.OpenHost(-1); f.tableErr != nil {
		f.host = nil
		return f
	}
	if f.present, f.tableErr = f.host.Present(); f.tableErr == nil && f.present {
		f.leases, f.tableErr = f.host.Leases(f.want.Terms.Renew, f.want.Terms.Lifetime)
	}
	return f
}

func (f *basics) close() {
	if f.host != nil {
		_ = f.host.Close() // only read
	}
}

// Installed is the back end of the node's rules; nftables if there are none.
func Installed(stateDir string) (rules.Kind, error) {
	stand, _, err := nodestate.HostRulesFile(stateDir).Read()
	if err != nil {
		return rules.Kind{}, err
	}
	return rules.Named(stand.Backend)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
