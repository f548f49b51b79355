package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func checkAgent(p Picture, f *findings) {
	a := p.Agent
	switch {
	case a.Unseen:
		f.add(Fail, "run the doctor as root in the host's namespaces", "%s", a.Err)
	case a.Err != "" && a.Holder > 0:
		f.add(Fail, fmt.Sprintf("look at process %d: is it stopped, starved of CPU or starting? Its log says more", a.Holder),
			"process %d holds %s and does not answer: %s", a.Holder, p.StateDir, a.Err)
	case a.Err != "":
		f.add(Fail, "start it (is the DaemonSet's pod on this node? its log says why it ended)", "%s", a.Err)
	case !a.Serving:
		f.add(Fail, "see the other findings", "instance %s does not serve", a.Instance)
	default:
		f.ok("instance %s serves since %s", a.Instance, a.Since.UTC().Format("2006-01-02T15:04:05Z"))
	}
	for _, what := range a.Without {
		f.ok("it runs without %s", what)
	}
	for _, part := range slices.Sorted(maps.Keys(a.Faults)) {
		if part != "upstreams" && part != "asking" && !strings.HasPrefix(part, "fallback ") { // said below
			f.add(Fail, "mend what it names; it is tried again all the time", "%s: %s", part, a.Faults[part])
		}
	}
}

func checkLink(p Picture, f *findings) {
	repair := "nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it"
	if p.Agent.Err != "" {
		repair = "start the agent"
	}
	if p.LinkErr != "" {
		f.unseen(p.LinkErr)
	}
	for _, d := range p.LinkDrift {
		f.add(Fail, repair, "%s: %s", p.Link, d)
	}
	if f.silent() {
		f.ok("%s is up and has its addresses", p.Link)
	}
}

func checkListeners(p Picture, f *findings) {
	for _, s := range p.Sockets {
		who := s.Holder
		if who == "" {
			who = "a process that cannot be seen from here"
		}
		if s.Wildcard {
			f.add(Warn, "let it listen on its own addresses only; our addresses are served all the same where the agent could bind them",
				"%s listens on every address, %s included", who, s.Target)
			continue
		}
		f.add(Fail, "stop it, or choose other addresses in the configuration", "%s listens on %s", who, s.Target)
	}
	if f.silent() {
		f.ok("no other process listens on our addresses")
	}
}

func checkRules(p Picture, f *findings) {
	switch t := p.Table; {
	case t.Err != "":
		f.unseen(t.Err)
	case !t.Present && p.Agent.Err != "":
		f.add(Fail, "start the agent; pods that are steered have no way until then", "there is no table inet neardns")
	case !t.Present:
		f.add(Fail, "find the program that deletes it (`nft monitor`); the agent puts it back", "there is no table inet neardns")
	case len(t.Drift) > 0:
		f.add(Fail, "nothing, if an agent runs: it repairs this at once; if it stays, find the program that changes it (`nft monitor`)", "%s",
			some(t.Drift))
	default:
		f.ok("table inet neardns is as the configuration says")
	}
}

func checkFirewall(p Picture, f *findings) {
	w := p.Firewall
	if w.Err != "" {
		f.unseen(w.Err)
	}
	for _, policy := range w.Policies {
		f.add(Fail, "give the agent the iptables programs (the image that is not slim has them), or accept udp and tcp port 53 for our addresses "+
			"there yourself", "%s drops what is for our addresses", policy)
	}
	if len(w.Chains) > 0 && p.heldLeases() < len(p.Targets) {
		f.add(Warn, "let pods' udp and tcp port 53 to our addresses through there", "leases are missing, and these chains of others may drop: %s",
			strings.Join(w.Chains, ", "))
	}
	if !f.silent() {
		return
	}
	switch {
	case len(w.Kept) > 0:
		f.ok("our addresses are accepted under %s", strings.Join(w.Kept, ", "))
	case len(w.Chains) > 0:
		f.ok("nothing keeps pods from our addresses, though others filter too: %s", strings.Join(w.Chains, ", "))
	default:
		f.ok("nothing drops what is for our addresses")
	}
}

func checkLeases(p Picture, f *findings) {
	var held []string
	if p.Agent.Unseen {
		f.unseen(p.Agent.Err)
		return
	}
	if p.Agent.Err != "" && p.heldLeases() == 0 {
		f.add(Fail, "start the agent, or let it run", "none is held: no agent answers")
		return
	}
	for _, t := range p.Targets {
		if p.holds(t) {
			held = append(held, t.String())
			continue
		}
		switch reason, lost := p.Agent.Reasons[t]; {
		case p.Agent.Err != "":
			f.add(Fail, "run the doctor again: the agent is starting or ending", "none for %s", t)
		case lost && reason == "":
			f.add(Fail, "run the doctor again: the agent does not know the reason yet", "none for %s: it lapsed a moment ago", t)
		case reason == "":
			f.add(Fail, "run the doctor again: a lease that just came or went looks like this", "none for %s in the kernel, though the agent proved it", t)
		case p.Agent.CannotAsk != "":
			f.add(Fail, "see upstreams: kube-dns answers meanwhile", "none for %s: %s", t, reason)
		case strings.Contains(reason, "firewall"):
			f.add(Fail, "let pods' udp and tcp port 53 to "+t.Address.String()+" through the firewall of this host", "none for %s: %s", t, reason)
		default:
			f.add(Fail, "mend the reason: kube-dns answers meanwhile", "none for %s: %s", t, reason)
		}
	}
	if f.silent() {
		f.ok("held for %s", strings.Join(held, ", "))
	}
}

func checkFallback(p Picture, f *findings) {
	if p.ProvenErr != "" {
		f.unseen(p.ProvenErr)
		return
	}
	answers := map[string]Answer{}
	for _, a := range p.Fallbacks {
		answers[a.Server] = a
	}
	for _, addr := range p.ClusterDNS {
		proven := slices.Contains(p.Proven, addr)
		why := p.Agent.Faults["fallback "+addr.String()]
		asked, known := answers[addr.String()]
		switch {
		case proven && why == "" && (!known || asked.Err == ""):
			f.ok("to %s is proven", addr)
		case proven:
			f.add(Fail, "look at kube-proxy and kube-dns: without the agent pods would have no DNS", "to %s was proven and fails now: %s", addr,
				first(why, asked.Err))
		case why != "":
			f.add(Fail, "look at kube-proxy and kube-dns; new pods are left alone meanwhile", "to %s is not proven: %s", addr, why)
		case asked.Err != "":
			f.add(Fail, "look at kube-proxy and kube-dns", "to %s is not proven, and the host gets no answer from it: %s", addr, asked.Err)
		default:
			f.add(Warn, "start the agent, which proves it; new pods are left alone meanwhile", "to %s is not proven yet", addr)
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

// some sums a list up.
func some(list []string) string {
	const most = 2
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}
