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

// localFact is a cluster DNS address and the local address that may replace it in a pod's resolv.conf.
type localFact struct {
	ClusterDNS, Local netip.Addr
	Err               error // why it may not be replaced
}

// locals finds out which local addresses a pod may name. A pod may name one only if its queries to the cluster DNS address would be
// steered and the switch exists: no pod table can turn a local address back into the cluster DNS address, so the host's rules must do so
// from the first query on, whether an agent runs or not.
func (v *verb) locals(in call, wish overlay.Wish, ns *os.File) []localFact {
	in.Settings = podSettings{OptOut: wish.OptOut} // the pod's nameservers are what is being decided
	f := v.collectFacts(in, ns)
	out := planLocals(v.conf, in, f)
	if f.SwitchStands || !slices.ContainsFunc(out, func(l localFact) bool { return l.Err == nil }) {
		return out
	}
	if err := v.withRules(-1, func(host rules.Rules) error { return v.ensureSwitch(host, hostRules(v.conf, f.Uplinks)) }); err != nil {
		for i := range out {
			out[i].Err = errors.Join(out[i].Err, err)
		}
	}
	return out
}

// planLocals decides for each redirect. It is pure.
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

// namedLocals returns the local addresses that may be named, as resolvconf.Node has them, and the cluster DNS addresses that the pod
// keeps, with the reason.
func namedLocals(facts []localFact, own resolvconf.Settings) (map[string]string, []podfile.Ignored) {
	named := map[string]string{}
	var cannot []podfile.Ignored
	for _, l := range facts {
		if l.Err == nil {
			named[l.ClusterDNS.String()] = l.Local.String()
			continue
		}
		if len(own.Nameservers) > 0 && overlay.AsksOthers(own.Nameservers, []steer.Redirect{{ClusterDNS: l.ClusterDNS}}, nil) != "" {
			continue // the pod has no such nameserver
		}
		cannot = append(cannot, podfile.Ignored{What: "nameserver local in place of " + l.ClusterDNS.String(), Why: l.Err.Error()})
	}
	return named, cannot
}
