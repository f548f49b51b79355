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

// Looker looks at the node that it runs on. It changes nothing.
type Looker struct {
	Conf     *config.Node // in effect
	Fault    error        // of its file, where the agent serves by the one before
	ReadFile func(path string) ([]byte, error)
	// CNIConf and CNIBin are the folders of the runtime's networks and of its plugins. Only the doctor looks at them.
	CNIConf, CNIBin string
}

func (l *Looker) socket() string { return filepath.Join(l.Conf.StateDir, nodestate.AgentSocketName) }

// facts are what every view of a node begins with. Each error stands beside what could not be had for it.
type facts struct {
	want     plan.Plan // what the node should be, as far as the configuration tells; by the back end that its rules stand in
	faults   []error   // of the plan
	up       upstream.Upstreams
	agent    *node.Status // what the running agent says of itself; nil: agentErr says why
	agentErr error

	kind    rules.Kind // that the node's rules stand in
	kindErr error

	host     rules.Rules // nil where it cannot be opened; close closes it
	present  bool        // the host table is there
	leases   []steer.LeaseState
	tableErr error // of these three

	pods *pods.Pods
}

func (l *Looker) gather(ctx context.Context) *facts {
	f := new(facts)
	f.kind, f.kindErr = Installed(l.Conf.StateDir)
	var readErr, kindErr error
	f.want, f.up, readErr = plan.Read(l.Conf, l.ReadFile, "doctor")
	f.want, kindErr = f.want.On(f.kind)
	for _, err := range []error{readErr, kindErr, f.kindErr} {
		if err != nil {
			f.faults = append(f.faults, err)
		}
	}
	f.agent, f.agentErr = askAgent(ctx, l.socket())
	f.pods = pods.Open(f.want.Folders.State, f.kind, slog.New(slog.DiscardHandler))
	if f.want.KernelAlone() {
		return f // there are no rules to look at
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

func (f *facts) close() {
	if f.host != nil {
		_ = f.host.Close() // only read
	}
}

// Installed is the back end that the node's rules stand in; nftables where there are none.
func Installed(stateDir string) (rules.Kind, error) {
	stand, err := nodestate.ReadHostRules(stateDir)
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
