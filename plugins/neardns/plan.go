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

// facts are what ADD looked up before it decided.
type facts struct {
	Ways     []hostnet.Found // one per redirect; none when leaveAlone has a reason already
	Proof    nodestate.Proof // of the fallback
	ProofErr error           // the proof is there and cannot be read
	Lacks    error           // why the host's rules cannot be had by this call
	Siblings []podfile.File  // other attachments of the same netns
	// SwitchStands: the host table needs nothing added, so the uplinks were not asked for.
	SwitchStands bool
	Uplinks      []string
	// UplinksErr is set when these could not be told. The switch would then stand open to the node's neighbours, so it is
	// not made.
	UplinksErr error
}

// hostInterface is where the pod's packets enter the host; "" when they do not.
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
	File         podfile.File // what the agent will read
	Pod          steer.Pod    // the pod table; no redirects: none is wanted
	Host         steer.Host   // the switch that must stand before it,
	SwitchStands bool         // as it did when the plan was made
	Exempt       []netip.Addr // pods that opted out, for the host table
	Result       []byte       // what is printed
}

// Touches tells whether the plan changes anything of the host's table.
func (p Plan) Touches() bool { return p.Steers() && !p.SwitchStands || len(p.Exempt) > 0 }

// Steers tells whether the pod's netns gets rules by this call.
func (p Plan) Steers() bool { return len(p.File.In(podfile.Steered)) > 0 }

// call is the part of a CNI call that a plan depends on.
type call struct {
	ContainerID, IfName, NetNS string
	Inode                      uint64
	Pod                        podArgs
	SharesHost                 bool   // the pod's netns is the host's
	Backend                    string // whose rules a pod gets; "" is nftables
	Settings                   podSettings
}

// leaveAlone returns why a pod is to be left alone whatever its network looks like, or "".
func leaveAlone(c *Conf, in call) string {
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

// wantsFacts tells whether the pod's network is worth a look: it is to be steered, or to be exempt from node interception.
func wantsFacts(c *Conf, in call) bool {
	return leaveAlone(c, in) == "" || in.Settings.OptOut && !in.SharesHost
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
			return Plan{}, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("prevResult cannot be given DNS settings: %v", err), "")
		}
	}
	p := Plan{
		Result: result,
		File: podfile.File{
			ContainerID: in.ContainerID, IfName: in.IfName, Network: c.Name, NetNS: in.NetNS, NetNSInode: in.Inode,
			PodName: in.Pod.Name, PodNamespace: in.Pod.Namespace, PodUID: in.Pod.UID,
			Addresses: addresses, OptOut: s.OptOut, Backend: in.Backend, DNS: &s.DNS, SearchCompletion: s.Completion,
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
	reason := leaveAlone(c, in)
	for i, r := range c.Redirects {
		d := podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: reason}
		if reason == "" {
			d = decide(c, r, f.Ways[i], f)
			d.Local = overlay.LocalOf(in.Settings.nameservers, c.Locals, r.ClusterDNS)
		}
		p.File.Decisions = append(p.File.Decisions, d)
	}
	if p.Steers() {
		p.Pod = podfile.Table(append([]podfile.File{p.File}, f.Siblings...)...)
	}
	p.Host, p.SwitchStands = hostRules(c, f.Uplinks), f.SwitchStands
	return p, nil
}

// hostRules describes what of the host's rules the plugin's own entry tells: the switch. The agent's plan describes all of them.
func hostRules(c *Conf, uplinks []string) steer.Host {
	return steer.Host{Redirects: c.Redirects, Locals: c.Locals, Uplinks: uplinks}
}

// decide says what becomes of one redirect of a pod that nothing else keeps from being steered.
func decide(c *Conf, r steer.Redirect, w hostnet.Found, f facts) podfile.Decision {
	switch {
	case w.Err != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: w.Err.Error()}
	case f.UplinksErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: "the node's uplinks cannot be told: " + f.UplinksErr.Error()}
	case f.Lacks != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.Lacks.Error()}
	case c.Steer == steerAlways || f.Proof.Covers(r.ClusterDNS):
		return podfile.Decision{Redirect: r, State: podfile.Steered}
	case f.ProofErr != nil:
		return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: f.ProofErr.Error()}
	}
	return podfile.Decision{Redirect: r, State: podfile.Pending, Reason: fmt.Sprintf("the fallback to %s is not yet proven on this node", r.ClusterDNS)}
}
