package inspect

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"

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
	Conf     *config.Node // the configuration in effect
	Fault    error        // fault of the configuration file, if the agent therefore keeps the previous configuration
	ReadFile func(path string) ([]byte, error)
	// CNIConf and CNIBin are the folders of CNI configurations and of CNI plugins. Only the doctor needs them.
	CNIConf, CNIBin string
}

func (in *Inspector) socket() string {
	return filepath.Join(in.Conf.StateDir, nodestate.AgentSocketName)
}

// basics has the facts that the commands status, query and doctor share.
type basics struct {
	want     plan.Plan // plan of the node by the configuration, for the back end of its present rules
	faults   []error   // faults of the configuration, the plan and the recorded back end
	up       upstream.Upstreams
	agent    *node.Status // status of the running agent; nil if there is none, see agentErr
	agentErr error

	kind    rules.Kind // back end of the node's rules
	kindErr error

	host     rules.Rules // nil if the rules cannot be opened, or with arrangement: transparent; close closes it
	present  bool        // the host table exists
	leases   []steer.LeaseState
	tableErr error // error of host, present and leases

	pods *pods.Pods
}

func (in *Inspector) collect(ctx context.Context) *basics {
	f := new(basics)
	f.kind, f.kindErr = Installed(in.Conf.StateDir)
	var readErr, kindErr error
	f.want, f.up, readErr = plan.Read(in.Conf, in.ReadFile, "doctor")
	f.want, kindErr = f.want.ForBackend(f.kind)
	f.faults = slices.DeleteFunc([]error{readErr, kindErr, f.kindErr}, func(err error) bool { return err == nil })
	f.agent, f.agentErr = readAgent[*node.Status](ctx, in.socket(), "/status")
	f.pods = pods.Open(f.want.Folders.State, f.kind, slog.New(slog.DiscardHandler))
	if f.want.KernelOnly() {
		return f // with arrangement: transparent there are no rules
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
		_ = f.host.Close() // nothing was written
	}
}

// Installed returns the back end of the node's rules by the record in the state folder; nftables if there is no record.
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
