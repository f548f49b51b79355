package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func checkAgent(snap Snapshot, f *findings) {
	a := snap.Agent
	switch {
	case a.Unseen:
		f.add(Fail, "run the doctor as root in the host's namespaces", "%s", a.Err)
	case a.Err != "" && a.Holder > 0:
		f.add(Fail, fmt.Sprintf("check process %d: is it stopped, short of CPU or starting? See its log", a.Holder),
			"process %d has locked %s and does not answer: %s", a.Holder, snap.StateDir, a.Err)
	case a.Err != "":
		f.add(Fail, "start it (is the DaemonSet's pod on this node? its log has the reason why it ended)", "%s", a.Err)
	case !a.Serving:
		f.add(Fail, "see the other findings", "instance %s does not serve", a.Instance)
	default:
		f.ok("instance %s serves since %s", a.Instance, a.Since.UTC().Format("2006-01-02T15:04:05Z"))
	}
	for _, what := range a.Without {
		f.ok("it runs without %s", what)
	}
	for _, part := range slices.Sorted(maps.Keys(a.Faults)) {
		if part != "upstreams" && part != "asking" && !strings.HasPrefix(part, "fallback ") { // other checks report these
			f.add(Fail, "fix what it names; the agent tries again all the time", "%s: %s", part, a.Faults[part])
		}
	}
}

func checkLink(snap Snapshot, f *findings) {
	repair := "nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it"
	if snap.Agent.Err != "" {
		repair = "start the agent"
	}
	if snap.LinkErr != "" {
		f.unseen(snap.LinkErr)
	}
	for _, d := range snap.LinkDrift {
		f.add(Fail, repair, "%s: %s", snap.Link, d)
	}
	if f.silent() {
		f.ok("%s is up and has its addresses", snap.Link)
	}
}

func checkListeners(snap Snapshot, f *findings) {
	for _, s := range snap.Sockets {
		who := s.Holder
		if who == "" {
			who = "a process that cannot be seen from here"
		}
		if s.Wildcard {
			f.add(Warn, "let it listen on its own addresses only; the agent serves its addresses anyway if it could bind them",
				"%s listens on every address, also %s", who, s.Target)
			continue
		}
		f.add(Fail, "stop it, or choose other addresses in the configuration", "%s listens on %s", who, s.Target)
	}
	if f.silent() {
		f.ok("no other process listens on our addresses")
	}
}

func checkRules(snap Snapshot, f *findings) {
	switch t := snap.Table; {
	case t.Err != "":
		f.unseen(t.Err)
	case !t.Present && snap.Agent.Err != "":
		f.add(Fail, "start the agent; steered pods have no DNS until then", "there is no table inet neardns")
	case !t.Present:
		f.add(Fail, "find the program that deletes it (`nft monitor`); the agent restores it", "there is no table inet neardns")
	case len(t.Drift) > 0:
		f.add(Fail, "nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it (`nft monitor`)", "%s",
			some(t.Drift))
	default:
		f.ok("table inet neardns is as configured")
	}
}

func checkFirewall(snap Snapshot, f *findings) {
	w := snap.Firewall
	if w.Err != "" {
		f.unseen(w.Err)
	}
	for _, policy := range w.Policies {
		f.add(Fail, "use the image with the iptables programs (not slim), or accept udp and tcp port 53 to our addresses "+
			"there yourself", "%s drops packets to our addresses", policy)
	}
	if len(w.Chains) > 0 && snap.heldLeases() < len(snap.Targets) {
		f.add(Warn, "let udp and tcp port 53 from pods to our addresses through",
			"leases are missing, and these chains of other programs may drop: %s",
			strings.Join(w.Chains, ", "))
	}
	if !f.silent() {
		return
	}
	switch {
	case len(w.Kept) > 0:
		f.ok("our addresses are accepted under %s", strings.Join(w.Kept, ", "))
	case len(w.Chains) > 0:
		f.ok("no rule keeps pods from our addresses; these chains of other programs filter, too: %s", strings.Join(w.Chains, ", "))
	default:
		f.ok("no rule drops packets to our addresses")
	}
}

func checkLeases(snap Snapshot, f *findings) {
	var held []string
	if snap.Agent.Unseen {
		f.unseen(snap.Agent.Err)
		return
	}
	if snap.Agent.Err != "" && snap.heldLeases() == 0 {
		f.add(Fail, "start the agent, or let it run", "none: no agent answers")
		return
	}
	for _, t := range snap.Targets {
		if snap.holds(t) {
			held = append(held, t.String())
			continue
		}
		switch reason, lost := snap.Agent.Reasons[t]; {
		case snap.Agent.Err != "":
			f.add(Fail, "run the doctor again: the agent is starting or ending", "none for %s", t)
		case lost && reason == "":
			f.add(Fail, "run the doctor again: the agent does not know the reason yet", "none for %s: it has just expired", t)
		case reason == "":
			f.add(Fail, "run the doctor again: a lease that is just granted or withdrawn looks like this",
				"none for %s in the kernel, although the agent granted it", t)
		case snap.Agent.CannotAsk != "":
			f.add(Fail, "see upstreams: kube-dns answers meanwhile", "none for %s: %s", t, reason)
		case strings.Contains(reason, "firewall"):
			f.add(Fail, "let pods' udp and tcp port 53 to "+t.Address.String()+" through the firewall of this host", "none for %s: %s", t, reason)
		default:
			f.add(Fail, "fix the reason: kube-dns answers meanwhile", "none for %s: %s", t, reason)
		}
	}
	if f.silent() {
		f.ok("granted for %s", strings.Join(held, ", "))
	}
}

func checkFallback(snap Snapshot, f *findings) {
	if snap.VerifiedErr != "" {
		f.unseen(snap.VerifiedErr)
		return
	}
	answers := map[string]QueryResult{}
	for _, a := range snap.Fallbacks {
		answers[a.Server] = a
	}
	for _, addr := range snap.ClusterDNS {
		verified := slices.Contains(snap.Verified, addr)
		why := snap.Agent.Faults["fallback "+addr.String()]
		result, known := answers[addr.String()]
		switch {
		case verified && why == "" && (!known || result.Err == ""):
			f.ok("to %s is verified", addr)
		case verified:
			f.add(Fail, "check kube-proxy and kube-dns: without the agent, pods would have no DNS", "to %s was verified and fails now: %s", addr,
				first(why, result.Err))
		case why != "":
			f.add(Fail, "check kube-proxy and kube-dns; new pods are bypassed meanwhile", "to %s is not verified: %s", addr, why)
		case result.Err != "":
			f.add(Fail, "check kube-proxy and kube-dns", "to %s is not verified, and the host gets no answer from it: %s", addr, result.Err)
		default:
			f.add(Warn, "start the agent, which verifies it; new pods are bypassed meanwhile", "to %s is not verified yet", addr)
		}
	}
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// some shortens a list.
func some(list []string) string {
	const most = 2
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}
