package nft

import (
	"time"

	"github.com/google/nftables"

	"github.com/neardns/neardns/pkg/steer"
)

// Evidence per pod. The switch hands a question to the agent in prerouting, before the host's own filters have seen it. Where
// these drop it (an egress policy that allows only kube-dns, a firewall zone), the pod would wait for ever beside a healthy
// agent: the prober's way is open, so the lease stands. So the switch notes whom it delivers (set asked), and, behind every
// filter of the input hook, who got through (set heard). Who asks and is not heard is put among the suspects by the agent,
// by a control packet in the suspect's name, and into bypass: there the switch acts as without a lease.
//
// When its time in bypass is over, one question of a suspect is delivered, on trial, and the switch puts it back into bypass
// at once. If that question is heard the suspect is cleared, by the switch itself; if not, the agent holds it for longer.
//
// Both notes are taken in the kernel on the same packet, within the same microseconds. So a process that is stopped, starved
// or replaced, a socket that overflows and a reload look the same for both sides, and make no suspects.

// Times and bounds of the evidence.
const (
	// askedMemory must outlast the time between two looks; a stopped agent's look may come late, and then finds nothing.
	askedMemory = time.Minute
	// heardMemory is longer, so that what was asked and heard together can never be seen as asked alone.
	heardMemory = 2 * time.Minute
	// askedBound is some times the pods of a node (110 by default), their families, protocols and our addresses. A full set
	// costs the evidence of those who come then, and nothing else.
	askedBound = 4096
	// heardBound is above what askedBound can let in during heardMemory (three sets full): heard is never full first, which
	// would make suspects.
	heardBound = 4 * askedBound
	// suspectMemory is how long after its last failed trial a suspect is remembered that asks nothing.
	suspectMemory = 40 * time.Minute
)

func (hf hostFamily) evidenceSets() []set {
	client := []nftables.SetDatatype{hf.addrType, nftables.TypeInetProto, hf.addrType}
	return []set{
		{name: hf.name("asked"), key: client, contents: dynamic, timeout: askedMemory, size: askedBound},
		{name: hf.name("heard"), key: client, contents: dynamic, timeout: heardMemory, size: heardBound},
		{name: hf.name("suspect"), key: client, contents: dynamic, timeout: suspectMemory, size: askedBound},
		{name: hf.name("bypass"), key: client, contents: dynamic, size: askedBound},
	}
}

// ask notes a question that is about to be delivered. That of a suspect is its trial: the next ones wait for what comes of it.
func (hf hostFamily) ask() []rule {
	return []rule{
		hf.rule().clientIn(hf.name("suspect")).clientUpdate(hf.name("bypass"), steer.Hold(0)).end(),
		hf.rule().clientUpdate(hf.name("asked"), 0).end(),
	}
}

// input takes what is left behind every filter: of UDP each packet, of TCP the SYN, as the switch counts them.
func (hf hostFamily) input() []rule {
	return []rule{
		hf.rule().nfproto().dport(steer.UDP, 53).goTo(hf.name("heard_udp")),
		hf.rule().nfproto().dport(steer.TCP, 53).goTo(hf.name("heard_tcp")),
	}
}

func (hf hostFamily) evidenceChains() []chain {
	f := hf.family
	ours := hf.name("ours")
	through := func(protocol string, b func() *ruleBuilder, counter string) chain {
		return chain{name: hf.name("heard_" + protocol), rules: []rule{
			// The node's own and the prober's never passed the switch.
			f.rule().iif("lo").ret(),
			f.rule().iif(steer.ProberInterface).ret(),
			b().count(counter).goTo(hf.name("through")),
		}}
	}
	return []chain{
		{name: hf.name("through"), rules: []rule{
			f.rule().clientIn(hf.name("suspect")).goTo(hf.name("cleared")),
			// Only who is in asked takes room here: so heard cannot be full before asked is.
			f.rule().clientIn(hf.name("asked")).clientUpdate(hf.name("heard"), 0).end(),
		}},
		{name: hf.name("cleared"), rules: []rule{
			f.rule().clientDelete(hf.name("suspect")).end(),
			f.rule().clientDelete(hf.name("bypass")).end(),
			f.rule().clientIn(hf.name("asked")).clientUpdate(hf.name("heard"), 0).end(),
		}},
		through("udp", func() *ruleBuilder { return f.rule().daddrIn(ours) }, steer.CounterHeardUDP),
		through("tcp", func() *ruleBuilder { return f.rule().daddrIn(ours).syn(true) }, steer.CounterHeardTCP),
	}
}

// holdRules turn the agent's control packets into holds and releases. The packets bear the client's own source, so that
// the key is written as everywhere else and a saved listing of the table can be loaded again.
func (hf hostFamily) holdRules() []rule {
	var rules []rule
	for step := range steer.HoldSteps {
		port := uint16(steer.PortHold + step) //nolint:gosec // a constant and a few steps
		rules = append(rules,
			hf.rule().anyDport(port).clientUpdate(hf.name("suspect"), 0).end(),
			hf.rule().anyDport(port).clientUpdate(hf.name("bypass"), steer.Hold(step)).end())
	}
	return append(rules, hf.rule().anyDport(steer.PortRelease).clientDelete(hf.name("bypass")).end())
}
