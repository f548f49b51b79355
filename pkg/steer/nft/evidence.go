package nft

import (
	"time"

	"github.com/google/nftables"

	"github.com/neardns/neardns/pkg/steer"
)

// The host's rules send a query to the agent in the prerouting hook, before the host's own filters. If a filter then drops queries of one
// pod (an egress policy that allows only kube-dns, a firewall zone), that pod would never get an answer, although the agent is healthy and
// the prober's queries renew the lease. Therefore the rules record each client whose query they deliver (set asked, the delivery record),
// and, after all filters of the input hook, each client whose query arrived (set heard, the arrival record). If a client's queries are in
// the delivery record but not in the arrival record, the agent adds the client to the sets suspect and bypass, by a control packet with the
// client's addresses. While a client is in bypass, the rules treat it as if there were no lease.
//
// When the client's time in bypass is over, or the agent has sent Release, the rules deliver one of its queries as a trial, and put
// the client back into bypass at once. If the query passes the filters, the rules remove the client from suspect and bypass; if
// not, the agent prolongs the bypass.
//
// The kernel makes both records for the same packet, within microseconds. Therefore nothing that happens to the agent makes a
// suspect: a stopped or starved process, a full socket buffer or a reload.

// Timeouts and sizes of the four sets.
const (
	// askedMemory is the timeout of the delivery record. It must be longer than the time between two reads by the agent. An agent that was
	// stopped and reads late finds nothing, which does no harm.
	askedMemory = time.Minute
	// heardMemory is the timeout of the set heard. It is longer, so that a client whose queries all arrive never expires from heard
	// first.
	heardMemory = 2 * time.Minute
	// askedBound is the size of the sets asked, suspect and bypass: several times the pods of a node (110 by default) times their IP families,
	// protocols and steering addresses. If the delivery record is full, further clients are not recorded, and nothing else changes for them.
	askedBound = 4096
	// heardBound is the size of the set heard: more different clients than the delivery record can have had during heardMemory, which is three
	// times its size. So heard is never the first to be full, which would make suspects.
	heardBound = 4 * askedBound
	// suspectMemory is how long a suspect is remembered after the agent's last Hold, unless a query of it passes the filters.
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

// recordDelivery returns rules for a query that is about to be delivered to the agent. They record its client. If the client is
// a suspect, the query is its trial, so they bypass its later queries until the result is known.
func (hf hostFamily) recordDelivery() []rule {
	return []rule{
		hf.rule().in(clientKey, hf.name("suspect")).updateFor(clientKey, hf.name("bypass"), steer.Hold(0)).end(),
		hf.rule().update(clientKey, hf.name("asked")).end(),
	}
}

func (hf hostFamily) evidenceChains() []chain {
	f := hf.family
	ours := hf.name("ours")
	through := func(protocol string, b func() *ruleBuilder, counter string) chain {
		return chain{name: hf.name("heard_" + protocol), rules: []rule{
			// The rules that deliver queries of the node itself and of the prober do not record them either.
			f.rule().iif("lo").ret(),
			f.rule().iif(steer.ProberInterface).ret(),
			b().count(counter).goTo(hf.name("through")),
		}}
	}
	return []chain{
		{name: hf.name("through"), rules: []rule{
			f.rule().in(clientKey, hf.name("suspect")).goTo(hf.name("cleared")),
			// Record only clients whose delivery is recorded, so that heard is not the first to be full.
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

// holdRules returns rules that apply the agent's control packets to suspect and bypass. Such a packet has the client's own
// source address, so that these rules take the key of the sets from the packet as all other rules do, and nft can load a saved
// listing of the table again.
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
