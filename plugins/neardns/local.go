package main

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// localFact has a cluster DNS address, and the node's local address that may replace it in a pod's resolv.conf.
type localFact struct {
	ClusterDNS, Local netip.Addr
	Err               error // why the local address must not replace it
}

// locals decides which local addresses may be nameservers in a pod's resolv.conf. That requires that the pod's queries to the
// cluster DNS address could be steered and that the host's rules exist; locals adds those that are missing. No pod table rewrites a
// local address, so only the host's rules can send queries for it to kube-dns while no agent runs.
func (v *verb) locals(in call, wanted overlay.PodRules, ns *os.File) []localFact {
	// Leave out the pod's nameservers: this call decides whether they may become local addresses.
	in.Settings = podSettings{Annotations: podfile.Annotations{OptOut: wanted.OptOut}}
	f := v.collectFacts(in, ns)
	out := planLocals(v.conf, in, f)
	if f.SwitchComplete || !slices.ContainsFunc(out, func(l localFact) bool { return l.Err == nil }) {
		return out
	}
	if err := v.withRules(-1, func(host rules.Rules) error { return v.ensureSwitch(host, hostRules(v.conf, f.Uplinks)) }); err != nil {
		for i := range out {
			out[i].Err = errors.Join(out[i].Err, err)
		}
	}
	return out
}

// planLocals decides, for each redirect, whether its local address may be a nameserver. It reads nothing from the node.
func planLocals(c *Conf, in call, f facts) []localFact {
	var out []localFact
	reason := bypassReason(c, in)
	for i, r := range c.Redirects {
		l := localFact{ClusterDNS: r.ClusterDNS}
		at := slices.IndexFunc(c.Locals, func(l steer.Local) bool { return l.ClusterDNS == r.ClusterDNS })
		switch {
		case at < 0:
			l.Err = errors.New("localAddresses has none for it")
		case reason != "":
			l.Err = errors.New(reason)
		default:
			l.Local = c.Locals[at].Address
			if d := decide(c, r, f.Ways[i], f); d.State != podfile.Steered {
				l.Err = errors.New(d.Reason)
			}
		}
		out = append(out, l)
	}
	return out
}

// namedLocals returns the local address by the cluster DNS address that it replaces, as resolvconf.Node needs it. The second
// result has the pod's cluster DNS addresses that are not replaced, with the reason.
func namedLocals(facts []localFact, own resolvconf.Settings) (map[string]string, []podfile.Ignored) {
	named := map[string]string{}
	var cannot []podfile.Ignored
	for _, l := range facts {
		if l.Err == nil {
			named[l.ClusterDNS.String()] = l.Local.String()
			continue
		}
		if len(own.Nameservers) > 0 && overlay.NotClusterDNS(own.Nameservers, []steer.Redirect{{ClusterDNS: l.ClusterDNS}}, nil) != "" {
			continue // the pod has no such nameserver
		}
		cannot = append(cannot, podfile.Ignored{What: "nameserver local in place of " + l.ClusterDNS.String(), Why: l.Err.Error()})
	}
	return named, cannot
}
