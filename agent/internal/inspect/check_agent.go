package inspect

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
)

// hasLease reports whether the kernel has a lease for the target's address and protocol.
func (f *facts) hasLease(t plan.Target) bool {
	return slices.ContainsFunc(f.leases, func(l steer.LeaseState) bool { return l.Address == t.Address && l.Protocol == t.Protocol })
}

// leaseCount returns how many of the wanted leases the kernel has, and the number of wanted leases.
func (f *facts) leaseCount() (granted, wanted int) {
	targets := f.want.Targets()
	for _, t := range targets {
		if f.hasLease(t) {
			granted++
		}
	}
	return granted, len(targets)
}

func (f *facts) leasesMissing() bool {
	granted, wanted := f.leaseCount()
	return granted < wanted
}

// agentUnseen reports whether this user has no access to the agent's socket, so the agent may run.
func (f *facts) agentUnseen() bool { return errors.Is(f.agentErr, fs.ErrPermission) }

func checkArrangement(f *facts, r *findings) string {
	if !f.want.KernelOnly() {
		return ""
	} else if f.kernelHitsOff {
		r.warn("write kernelHits.mode: \"on\" or namespaces", "transparent, and kernel hits are off: kube-dns answers everything")
	}
	return "transparent: no rules in pods, on links or in netfilter"
}

func checkConfig(f *facts, r *findings) string {
	for _, err := range f.faults {
		r.fail("correct the configuration", "%s", err)
	}
	for _, u := range f.unknown {
		r.warn("correct or remove the key; it has no effect", "%s", u)
	}
	return "no fault found"
}

func checkAgent(f *facts, r *findings) string {
	a := f.agent
	switch {
	case f.agentUnseen():
		r.fail("run the doctor as root in the host's namespaces", "%s", f.agentErr)
	case f.agentErr != nil && f.holder > 0:
		r.fail("check that process: is it stopped, short of CPU or starting? See its log", "process %d has locked %s and does not answer: %s",
			f.holder, f.want.Folders.State, f.agentErr)
	case f.agentErr != nil:
		r.fail("start it (is the DaemonSet's pod on this node? its log has the reason why it ended)", "%s", f.agentErr)
	case !a.Serving:
		r.fail("see the other findings", "instance %s does not serve", a.Instance)
	default:
		r.ok("instance %s serves since %s", a.Instance, a.Started.UTC().Format("2006-01-02T15:04:05Z"))
	}
	for _, what := range a.Without {
		r.ok("it runs without %s", what)
	}
	for _, part := range slices.Sorted(maps.Keys(a.Faults)) {
		if part != "upstreams" && part != "asking" && !strings.HasPrefix(part, "fallback ") { // reported by other checks
			r.fail("fix what it names; the agent tries again all the time", "%s: %s", part, a.Faults[part])
		}
	}
	return ""
}

func checkLink(f *facts, r *findings) string {
	repair := "nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it"
	if f.agentErr != nil {
		repair = "start the agent"
	}
	r.unreadable(f.linkErr)
	for _, d := range f.linkDrift {
		r.fail(repair, "%s: %s", f.want.Link.Name, d)
	}
	return f.want.Link.Name + " is up and has its addresses"
}

func checkRules(f *facts, r *findings) string {
	switch {
	case f.tableErr != nil:
		r.unreadable(f.tableErr)
	case !f.present && f.agentErr != nil:
		r.fail("start the agent; steered pods have no DNS until then", "the host has no packet rules of neardns")
	case !f.present:
		r.fail("find the program that deletes them (`nft monitor`); the agent restores them", "the host has no packet rules of neardns")
	case len(f.tableDrift) > 0:
		r.fail("nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it (`nft monitor`)", "%s",
			some(f.tableDrift))
	}
	return "the host's packet rules are as configured"
}

func checkLeases(f *facts, r *findings) string {
	granted, _ := f.leaseCount()
	switch {
	case f.agentUnseen():
		r.unreadable(f.agentErr)
		return ""
	case f.agentErr != nil && granted == 0:
		r.fail("start the agent, or let it run", "none: no agent answers")
		return ""
	}
	for _, t := range f.want.Targets() {
		if f.hasLease(t) {
			continue
		}
		at := slices.IndexFunc(f.agent.Leases, func(l node.LeaseStatus) bool {
			return !l.Held && l.Address == t.Address && l.Protocol == t.Protocol.String()
		})
		switch {
		case f.agentErr != nil:
			r.fail("run the doctor again: the agent is starting or ending", "none for %s", t)
		case at < 0:
			r.fail("run the doctor again: a lease that is just granted or withdrawn looks like this",
				"none for %s in the kernel, although the agent granted it", t)
		case f.agent.Leases[at].Reason == "":
			r.fail("run the doctor again: the agent does not know the reason yet", "none for %s: it has just expired", t)
		default:
			reason, do := f.agent.Leases[at].Reason, "fix the reason: kube-dns answers meanwhile"
			if f.agent.CannotAsk != "" {
				do = "see upstreams: kube-dns answers meanwhile"
			} else if strings.Contains(reason, "firewall") {
				do = "let pods' udp and tcp port 53 to " + t.Address.String() + " through the firewall of this host"
			}
			r.fail(do, "none for %s: %s", t, reason)
		}
	}
	return "granted for " + strings.Join(texts(f.want.Targets()), ", ")
}

// fallbackCauses is the remedy for a fallback that fails. The bundle has these settings.
const fallbackCauses = "check that kube-dns runs and kube-proxy has rules for it, then net.ipv4.ip_forward (IPv6: all.forwarding), " +
	"net.bridge.bridge-nf-call-iptables for pods on a bridge, and whether nf_conntrack_max is reached; if eBPF replaces kube-proxy, " +
	"apply install/overlays/transparent"

func checkFallback(f *facts, r *findings) string {
	if f.verifiedErr != nil {
		r.unreadable(f.verifiedErr)
		return ""
	}
	for _, path := range f.want.Fallbacks() {
		addr := path.ClusterDNS
		verified, fault := slices.Contains(f.verified, addr), f.agent.Faults["fallback "+addr.String()]
		var failed string
		for _, result := range f.fallbacks {
			if result.addr == addr {
				failed = text(result.err)
			}
		}
		switch {
		case verified && fault == "" && failed == "":
			r.ok("to %s is verified", addr)
		case verified:
			r.fail(fallbackCauses, "to %s was verified and fails now: %s. Without the agent, pods would have no DNS", addr, cmp.Or(fault, failed))
		case fault != "":
			r.fail(fallbackCauses, "to %s is not verified, so new pods stay on kube-dns: %s", addr, fault)
		case failed != "":
			r.fail(fallbackCauses, "to %s is not verified, and the host gets no answer from it: %s", addr, failed)
		default:
			r.warn("start the agent, which verifies it; new pods stay on kube-dns meanwhile", "to %s is not verified yet", addr)
		}
	}
	return ""
}
