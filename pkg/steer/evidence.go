package steer

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
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

// HoldSteps is how often a hold grows. Holds(0) is the first.
const HoldSteps = 4

// Hold is how long a suspect is in bypass: at most one question is lost in this time. The first is short, since a policy
// that comes a little later than its pod is the most frequent reason; the last bounds what a lasting one costs.
func Hold(step int) time.Duration {
	return [HoldSteps]time.Duration{15 * time.Second, time.Minute, 4 * time.Minute, 16 * time.Minute}[min(max(step, 0), HoldSteps-1)]
}

// Ports of the control packets that carry a client as their source, protocol and destination.
const (
	portHold  = 201 // and the next ones, by step
	portClear = 301
)

// Client is whom the evidence is about: one source that asks one of our addresses over one protocol.
type Client struct {
	Source   netip.Addr
	Protocol Protocol
	Address  netip.Addr // steering or local address, of the source's family
}

func (c Client) String() string {
	return fmt.Sprintf("%s to %s over %s", c.Source, c.Address, c.Protocol)
}

// Compare orders clients for people.
func (c Client) Compare(o Client) int {
	return cmp.Or(c.Source.Compare(o.Source), c.Address.Compare(o.Address), cmp.Compare(o.Protocol, c.Protocol))
}

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
		hf.rule().clientIn(hf.name("suspect")).clientUpdate(hf.name("bypass"), Hold(0)).end(),
		hf.rule().clientUpdate(hf.name("asked"), 0).end(),
	}
}

// input takes what is left behind every filter: of UDP each packet, of TCP the SYN, as the switch counts them.
func (hf hostFamily) input() []rule {
	return []rule{
		hf.rule().nfproto().dport(UDP, 53).goTo(hf.name("heard_udp")),
		hf.rule().nfproto().dport(TCP, 53).goTo(hf.name("heard_tcp")),
	}
}

func (hf hostFamily) evidenceChains() []chain {
	f := hf.family
	ours := hf.name("ours")
	through := func(protocol string, b func() *ruleBuilder, counter string) chain {
		return chain{name: hf.name("heard_" + protocol), rules: []rule{
			// The node's own and the prober's never passed the switch.
			f.rule().iif("lo").ret(),
			f.rule().iif(ProberInterface).ret(),
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
		through("udp", func() *ruleBuilder { return f.rule().daddrIn(ours) }, CounterHeardUDP),
		through("tcp", func() *ruleBuilder { return f.rule().daddrIn(ours).syn(true) }, CounterHeardTCP),
	}
}

// holdRules turn the agent's control packets into holds and clearings. The packets bear the client's own source, so that
// the key is written as everywhere else and a saved listing of the table can be loaded again.
func (hf hostFamily) holdRules() []rule {
	var rules []rule
	for step := range HoldSteps {
		port := uint16(portHold + step) //nolint:gosec // a constant and a few steps
		rules = append(rules,
			hf.rule().anyDport(port).clientUpdate(hf.name("suspect"), 0).end(),
			hf.rule().anyDport(port).clientUpdate(hf.name("bypass"), Hold(step)).end())
	}
	return append(rules,
		hf.rule().anyDport(portClear).clientDelete(hf.name("suspect")).end(),
		hf.rule().anyDport(portClear).clientDelete(hf.name("bypass")).end())
}
