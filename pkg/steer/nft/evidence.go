package nft

import (
	"time"

	"github.com/google/nftables"

	"github.com/neardns/neardns/pkg/steer"
)

// Evidence per pod. The switch delivers a query to the agent in prerouting, before the host's own filters see it. If a filter
// drops it there (an egress policy that allows only kube-dns, a firewall zone), the pod would wait for ever although the agent
// is healthy: the prober's queries pass, so the lease is renewed. Therefore the switch records each client that it delivers
// (set asked), and, after every filter of the input hook, each client whose query arrived (set heard). If a client is in asked
// but not in heard, the agent adds it to suspect and bypass, with a control packet that has the client's addresses. For a
// client in bypass the switch behaves as if there were no lease.
//
// When the client's time in bypass is over, the switch delivers one query as a trial and puts the client back into bypass at
// once. If the query passes the filters, the switch clears the client by itself; if not, the agent bypasses the client for
// longer.
//
// The kernel makes both records for the same packet, within microseconds. Therefore a process that is stopped, starved or
// replaced, a full socket buffer or a reload affects both alike and makes no suspects.

// Times and sizes of the evidence sets.
const (
	// askedMemory must be longer than the time between two reads of the agent. If the agent was stopped and reads late, it
	// finds nothing, which does no harm.
	askedMemory = time.Minute
	// heardMemory is longer, so that a client in both sets never expires from heard first.
	heardMemory = 2 * time.Minute
	// askedBound is several times the pods of a node (110 by default) times their families, protocols and steering addresses.
	// If the set is full, further clients have no evidence, and nothing else changes for them.
	askedBound = 4096
	// heardBound exceeds what askedBound can let in during heardMemory (three full sets), so that heard is never full before
	// asked, which would make suspects.
	heardBound = 4 * askedBound
	// suspectMemory is how long a suspect that sends no query is remembered after its last failed trial.
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

// recordDelivery records a query that is about to be delivered. A suspect's query is its trial, and later ones are bypassed
// until its result is known.
func (hf hostFamily) recordDelivery() []rule {
	return []rule{
		hf.rule().in(clientKey, hf.name("suspect")).updateFor(clientKey, hf.name("bypass"), steer.Hold(0)).end(),
		hf.rule().update(clientKey, hf.name("asked")).end(),
	}
}

// input counts the queries that passed every filter: each packet of UDP, the SYN of TCP, as the switch counts them.
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
			// Queries of the node itself and of the prober do not traverse the switch.
			f.rule().iif("lo").ret(),
			f.rule().iif(steer.ProberInterface).ret(),
			b().count(counter).goTo(hf.name("through")),
		}}
	}
	return []chain{
		{name: hf.name("through"), rules: []rule{
			f.rule().in(clientKey, hf.name("suspect")).goTo(hf.name("cleared")),
			// Only clients in asked get an entry here, so that heard cannot be full before asked is.
			f.rule().in(clientKey, hf.name("asked")).update(clientKey, hf.name("heard")).end(),
		}},
		{name: hf.name("cleared"), rules: []rule{
			f.rule().remove(clientKey, hf.name("suspect")).end(),
			f.rule().remove(clientKey, hf.name("bypass")).end(),
			f.rule().in(clientKey, hf.name("asked")).update(clientKey, hf.name("heard")).end(),
		}},
		through("udp", func() *ruleBuilder { return f.rule().in(destKey, ours) }, steer.CounterHeardUDP),
		through("tcp", func() *ruleBuilder { return f.rule().in(destKey, ours).syn(true) }, steer.CounterHeardTCP),
	}
}

// holdRules turn the agent's control packets into changes of suspect and bypass. A packet has the client's own source address,
// so that keys are written as in every other rule and a saved listing of the table can be loaded again.
func (hf hostFamily) holdRules() []rule {
	var rules []rule
	for step := range steer.HoldSteps {
		port := uint16(steer.PortHold + step) //nolint:gosec // a constant and a few steps
		rules = append(rules,
			hf.rule().anyDport(port).update(clientKey, hf.name("suspect")).end(),
			hf.rule().anyDport(port).updateFor(clientKey, hf.name("bypass"), steer.Hold(step)).end())
	}
	return append(rules, hf.rule().anyDport(steer.PortRelease).remove(clientKey, hf.name("bypass")).end())
}
