package main

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// facts are what ADD reads from the node before it decides.
type facts struct {
	Ways        []hostnet.Found // one per redirect; none if bypassReason has a reason already
	Proof       nodestate.Proof // the fallback check's result
	ProofErr    error           // the result exists and cannot be read
	Unsupported error           // why this call cannot have the host's rules
	Siblings    []podfile.File  // other attachments of the same netns
	// SwitchStands is true if the host table needs no addition. Uplinks is then empty.
	SwitchStands bool
	Uplinks      []string
	// UplinksErr is set if the uplinks are unknown. Without them the switch would serve other hosts too, so it is not made.
	UplinksErr error
}

// hostInterface returns the host's link at which the pod's packets arrive; "" if there is none.
func (f facts) hostInterface() string {
	for _, w := range f.Ways {
		if w.Err == nil {
			return w.HostInterface
		}
	}
	return ""
}

// Plan is everything that ADD is going to do.
type Plan struct {
	File         podfile.File // the record that the agent reads
	Pod          steer.Pod    // the pod table; without redirects the pod gets none
	Host         steer.Host   // the switch that must exist before the pod table
	SwitchStands bool         // the switch was complete when the plan was made
	Exempt       []netip.Addr // addresses of a pod that opted out, for the host table
	Result       []byte       // the CNI result to print
}

// Touches reports whether the plan changes the host's table.
func (p Plan) Touches() bool { return p.Steers() && !p.SwitchStands || len(p.Exempt) > 0 }

// Steers reports whether this call puts rules into the pod's netns.
func (p Plan) Steers() bool { return len(p.File.In(podfile.Steered)) > 0 }

// call is the part of a CNI call that a plan depends on.
type call struct {
	ContainerID, IfName, NetNS string
	Inode                      uint64
	Pod                        podArgs
	SharesHost                 bool   // the pod's netns is the host's
	Backend                    string // the back end of the pod's rules; "" is nftables
	Settings                   podSettings
}

// bypassReason returns why a pod must not be steered, independent of its network; "" if it may be.
func bypassReason(c *Conf, in call) string {
	switch {
	case in.SharesHost:
		return "the pod shares the host's network namespace"
	case in.Settings.OptOut:
		return overlay.OptedOut
	case c.Steer == steerOff:
		return "steer is off in the configuration"
	}
	return overlay.AsksOthers(in.Settings.nameservers, c.Redirects, c.Locals)
}

// needsFacts reports whether the decision depends on the pod's network: the pod may be steered, or be exempt from node interception.
func needsFacts(c *Conf, in call) bool {
	return bypassReason(c, in) == "" || in.Settings.OptOut && !in.SharesHost
}

// makePlan decides. It is pure: equal arguments give equal plans.
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
			Addresses: addresses, OptOut: s.OptOut, OptIn: s.OptIn, Backend: in.Backend, DNS: &s.DNS, SearchCompletion: s.Completion,
			KernelHits: s.KernelHits, Ignored: s.Ignored,
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
			if d.Local = overlay.LocalOf(in.Settings.nameservers, c.Locals, r.ClusterDNS); c.Steer != steerAlways && !d.Local.IsValid() {
				d = afterTrial(d)
			}
		}
		p.File.Decisions = append(p.File.Decisions, d)
	}
	if p.Steers() {
		p.Pod = podfile.Table(append([]podfile.File{p.File}, f.Siblings...)...)
	}
	p.Host, p.SwitchStands = hostRules(c, f.Uplinks), f.SwitchStands
	return p, nil
}

// hostRules returns the part of the host's rules that the plugin's conflist entry describes: the switch. The agent's plan has all of
// them.
func hostRules(c *Conf, uplinks []string) steer.Host {
	return steer.Host{Redirects: c.Redirects, Locals: c.Locals, Uplinks: uplinks}
}

// afterTrial leaves it to the agent to steer the redirect, once a trial from the pod's netns is answered: a network policy may let the pod
// reach only kube-dns. A pod that names a local address gets no such trial, because it is its resolv.conf that leads it to the agent.
func afterTrial(d podfile.Decision) podfile.Decision {
	if d.State == podfile.Steered {
		d.State, d.Reason = podfile.Pending, "its path to the agent is not tried yet"
	}
	d.Untried = d.State == podfile.Pending
	return d
}

// decide returns the decision for one redirect of a pod without a bypassReason.
func decide(c *Conf, r steer.Redirect, w hostnet.Found, f facts) podfile.Decision {
	switch {
	case w.Err != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: w.Err.Error()}
	case f.UplinksErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: "the node's uplinks are unknown: " + f.UplinksErr.Error()}
	case f.Unsupported != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.Unsupported.Error()}
	case c.Steer == steerAlways || f.Proof.Covers(r.ClusterDNS):
		return podfile.Decision{Redirect: r, State: podfile.Steered}
	case f.ProofErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.ProofErr.Error()}
	}
	reason := fmt.Sprintf("the fallback to %s is not yet verified on this node", r.ClusterDNS)
	return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: reason}
}
