package main

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// facts is the state of the node that ADD reads before it decides about a pod.
type facts struct {
	Ways        []hostnet.Found // the pod's network path to the host, for each redirect; empty if needsFacts is false
	Proof       nodestate.Proof // stored result of the agent's fallback check; zero if it does not count for this call
	ProofErr    error           // the stored result exists but cannot be read
	Unsupported error           // why the host's rules cannot serve this pod yet; see missingRules
	Siblings    []podfile.File  // state files of the container's other interfaces in the same netns
	// SwitchComplete is true if the host's rules already have everything that this pod needs. Uplinks is then not read and
	// stays empty.
	SwitchComplete bool
	Uplinks        []string // links that lead away from the node; pods are not behind them
	// UplinksErr is set if the node's uplinks could not be read. The pod is then not steered, because host rules without a list
	// of uplinks would also serve other hosts.
	UplinksErr error
}

// hostInterface returns the host's link at which the pod's packets arrive; "" if there is none or it is not known.
func (f facts) hostInterface() string {
	for _, w := range f.Ways {
		if w.Err == nil {
			return w.HostInterface
		}
	}
	return ""
}

// Plan is what an ADD writes, apart from the pod's resolv.conf: the pod's state file, rules and the CNI result.
type Plan struct {
	File           podfile.File // the pod's state file, which the agent reads
	Pod            steer.Pod    // the rules for the pod's netns; without redirects the pod gets none
	Host           steer.Host   // the host's rules that must exist before the pod's rules
	SwitchComplete bool         // the host's rules were already complete when the facts were read
	Exempt         []netip.Addr // addresses of a pod that opted out, to be exempted from node interception
	Result         []byte       // the CNI result to print
}

// Touches reports whether the plan may change the host's rules.
func (p Plan) Touches() bool { return p.Steers() && !p.SwitchComplete || len(p.Exempt) > 0 }

// Steers reports whether this ADD writes steering rules into the pod's netns.
func (p Plan) Steers() bool { return len(p.File.In(podfile.Steered)) > 0 }

// call has the parameters of a CNI call that a plan depends on.
type call struct {
	ContainerID, IfName, NetNS string
	Inode                      uint64
	Pod                        podArgs
	SharesHost                 bool   // the pod's netns is the host's
	Backend                    string // the back end that writes the pod's rules; "" is nftables
	Settings                   podSettings
}

// bypassReason returns why a pod must not be steered, whatever its network path is; "" if it may be steered.
func bypassReason(c *Conf, in call) string {
	switch {
	case in.SharesHost:
		return "the pod shares the host's network namespace"
	case in.Settings.OptOut:
		return overlay.OptedOut
	case c.Steer == conflist.SteerOff:
		return "steer is off in the configuration"
	}
	return overlay.NotClusterDNS(in.Settings.nameservers, c.Redirects, c.Locals)
}

// needsFacts reports whether the plan depends on the pod's network path: the pod may be steered, or it opted out and must be
// exempted from node interception.
func needsFacts(c *Conf, in call) bool {
	return bypassReason(c, in) == "" || in.Settings.OptOut && !in.SharesHost
}

// makePlan decides what ADD does. It reads nothing from the node, so equal arguments give equal plans.
func makePlan(c *Conf, in call, f facts) (Plan, error) {
	result, addresses, err := passOn(c, in.IfName)
	if err != nil {
		return Plan{}, err
	}
	s := in.Settings
	if s.result {
		if result, err = withDNS(result, s.DNS.Settings); err != nil {
			return Plan{}, failure(types.ErrDecodingFailure, "prevResult cannot be given DNS settings: %v", err)
		}
	}
	p := Plan{
		Result: result,
		File: podfile.File{
			ContainerID: in.ContainerID, IfName: in.IfName, Network: c.Name, NetNS: in.NetNS, NetNSInode: in.Inode,
			PodName: in.Pod.Name, PodNamespace: in.Pod.Namespace, PodUID: in.Pod.UID,
			Addresses: addresses, Backend: in.Backend, DNS: &s.DNS, Annotations: s.Annotations,
		},
	}
	if c.DNS != nil {
		p.File.Nameservers, p.File.Searches, p.File.Options = c.DNS.Servers, c.DNS.Searches, c.DNS.Options
	}
	p.File.HostInterface = f.hostInterface()
	if s.OptOut && p.File.HostInterface != "" && f.UplinksErr == nil {
		p.Exempt = addresses
	}
	reason := bypassReason(c, in)
	for i, r := range c.Redirects {
		d := podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: reason}
		if reason == "" {
			d = decide(c, r, f.Ways[i], f)
			if d.Local = overlay.LocalOf(in.Settings.nameservers, c.Locals, r.ClusterDNS); c.Steer != conflist.SteerAlways && !d.Local.IsValid() {
				d = afterTrial(d)
			}
		}
		p.File.Decisions = append(p.File.Decisions, d)
	}
	if p.Steers() {
		p.Pod = podfile.Table(append([]podfile.File{p.File}, f.Siblings...)...)
	}
	p.Host, p.SwitchComplete = hostRules(c, f.Uplinks), f.SwitchComplete
	return p, nil
}

// hostRules returns those of the host's rules that follow from the plugin's configuration. The agent adds the others, for
// example for pods that still use an address that was removed from the configuration.
func hostRules(c *Conf, uplinks []string) steer.Host {
	return steer.Host{Redirects: c.Redirects, Locals: c.Locals, Uplinks: uplinks}
}

// afterTrial makes a steered redirect pending, and marks any pending one as untried: the agent steers it after a trial query from the
// pod's netns was answered, because a network policy may let the pod reach only kube-dns. It is not called with steer: always, nor if
// the pod has a local address as nameserver in place of the cluster DNS address, because those queries go to the node's own address
// without steering.
func afterTrial(d podfile.Decision) podfile.Decision {
	if d.State == podfile.Steered {
		d.State, d.Reason = podfile.Pending, "its path to the agent is not tried yet"
	}
	d.Untried = d.State == podfile.Pending
	return d
}

// decide returns the decision for one redirect of a pod that has no bypassReason.
func decide(c *Conf, r steer.Redirect, w hostnet.Found, f facts) podfile.Decision {
	switch {
	case w.Err != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: w.Err.Error()}
	case f.UplinksErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: "the node's uplinks are unknown: " + f.UplinksErr.Error()}
	case f.Unsupported != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.Unsupported.Error()}
	case c.Steer == conflist.SteerAlways || f.Proof.Covers(r.ClusterDNS):
		return podfile.Decision{Redirect: r, State: podfile.Steered}
	case f.ProofErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.ProofErr.Error()}
	}
	reason := fmt.Sprintf("the fallback to %s is not yet verified on this node", r.ClusterDNS)
	return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: reason}
}
