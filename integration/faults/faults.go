package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/cited"
)

// fault is one thing that goes wrong, or is done on purpose, while pods query.
type fault struct {
	name  string
	title string // in the table
	// length is how long the load goes on from the fault's begin; lead is how long it goes before, 2 s by default.
	length, lead time.Duration
	limit        limit
	// promised limits are judged always, others only on request.
	promised bool
	// noStock is the reason why the fault has no counterpart for a stock CoreDNS, and none for unbound.
	noStock string
	// anywhere: it befalls a node without a cache, too.
	anywhere bool
	// ends: the process under test does not live through it.
	ends bool
	// state is the test that shows what pods and leases do then, bound the one that holds the rule or the time, on a virtual clock. This
	// program measures what it costs.
	state, bound cited.Test
	// short faults make up the short form.
	short bool
	// control has the load query kube-dns at its own address as well, past what is tried.
	control bool
}

// Times of the faults.
const (
	lead      = 2 * time.Second // of undisturbed load before a fault
	downTime  = 3 * time.Second // from a crash to the start: a kubelet's first back-off is longer
	stopTime  = 6 * time.Second // that a process hangs
	deadTime  = 10 * time.Second
	slowTime  = 5 * time.Second
	floodTime = 6 * time.Second
	reloads   = 20
	slowness  = 1500 * time.Millisecond
	floodRate = 20_000
)

// allFaults in the table's order.
func allFaults() []fault { return append(serverFaults(), nodeFaults()...) }

// serverFaults end or stop the process that serves.
func serverFaults() []fault {
	return []fault{
		{
			name: "sigterm-restart", title: "SIGTERM and start again", length: 4 * time.Second, short: true, ends: true,
			limit: limit{lost: 0, tcp: 0, kept: 0.95},
			state: in("integration/steering", "TestEndAndStart"), bound: in("agent/internal/node", "TestOrderOfStartAndStop"),
		},
		{
			name: "successor", title: "successor started, old one stopped", length: 5 * time.Second, ends: true, noStock: noHandOver,
			state: in("integration/steering", "TestSuccessors"), bound: in("agent/internal/node", "TestYield"),
			limit: limit{lost: 0, tcp: 0, kept: 0.95},
		},
		{
			name: "reload", title: fmt.Sprintf("reload, %d times", reloads), length: 9 * time.Second,
			state: in("integration/steering", "TestReloadLosesNothing"), bound: in("agent/internal/node", "TestReloadMovesAddressesBeforeTheServer"),
			limit: limit{lost: 0, tcp: 0, kept: 0.95},
		},
		{
			name: "kill", title: "kill -9, started again 3 s later", length: 5 * time.Second, short: true, ends: true,
			state: in("integration/steering", "TestEndAndStart"), bound: in("pkg/steer/nft", "TestTrace"),
			limit: limit{lost: 5, tcp: 5, gap: 50 * time.Millisecond},
		},
		{
			name: "sigstop", title: "SIGSTOP for 6 s", length: 8 * time.Second, short: true,
			state: in("integration/steering", "TestMatrix"), bound: in("pkg/steer/nft", "TestTrace"),
			limit: limit{lost: 1000, tcp: 400, gap: time.Second},
		},
		{
			name: "sigstop-old", title: "SIGSTOP of the old one during the overlap", length: 8 * time.Second, ends: true, noStock: noHandOver,
			state: in("integration/steering", "TestStoppedWithinAHandover"), bound: in("pkg/steer/nft", "TestTrace"),
			limit: limit{lost: 1000, tcp: 400, gap: time.Second},
		},
		{
			name: "sigstop-new", title: "SIGSTOP of the new one during the overlap", length: 8 * time.Second, ends: true, noStock: noHandOver,
			state: in("integration/steering", "TestStoppedWithinAHandover"), bound: in("agent/internal/node", "TestYieldFails"),
			limit: limit{lost: 1000, tcp: 400, gap: time.Second},
		},
		{
			name: "kill-new", title: "kill -9 of the new one during the overlap, another one 3 s later", length: 5 * time.Second, ends: true,
			noStock: noHandOver, limit: limit{lost: 5, tcp: 5, gap: 50 * time.Millisecond},
			state: in("integration/steering", "TestSuccessorDies"), bound: in("agent/internal/lifecycle/handover", "TestSuccessorDies"),
		},
		{
			name: "oom", title: "OOM kill by a cgroup limit, started again 3 s later", length: 5 * time.Second, ends: true,
			state: in("integration/steering", "TestEndAndStart"), bound: in("pkg/steer/nft", "TestTrace"),
			// A query for each millisecond that the kernel takes to end the server; another process keeps a CPU busy (docs/project/faults.md).
			limit: limit{lost: 25, tcp: 5, gap: 50 * time.Millisecond},
		},
	}
}

// nodeFaults are of what is around the process.
func nodeFaults() []fault {
	return []fault{
		{
			name: "link-deleted", title: "link deleted", length: 4 * time.Second, short: true, limit: limit{lost: 50, tcp: 50},
			state: in("integration/environment", "TestLinkFaults"), bound: in("agent/internal/node", "TestRepairedRulesAreProvenAtOnce"),
		},
		{
			name: "table-flushed", title: "nft flush ruleset", length: 4 * time.Second, limit: limit{lost: 50, tcp: 50},
			state: in("integration/environment", "TestRuleFaults"), bound: in("agent/internal/node", "TestMissingSwitchIsMendedAtOnce"),
		},
		{
			name: "address-removed", title: "address removed", length: 4 * time.Second, limit: limit{lost: 50, tcp: 50},
			state: in("integration/environment", "TestLinkFaults"), bound: in("agent/internal/node", "TestRepairedRulesAreProvenAtOnce"),
		},
		{
			name: "upstream-dead", title: "upstream dead for 10 s", length: 11 * time.Second, anywhere: true,
			state: in("integration/steering", "TestKubeDNSOutageKeepsLeases"), bound: in("internal/dns/forward", "TestAlone"),
			limit: limit{share: 0.01, tcpShare: 0.02, refusal: 2 * time.Second}, // see docs/project/faults.md
		},
		{
			name: "upstream-slow", title: "upstream answering after 1.5 s", length: slowTime, lead: 2 * lead, anywhere: true,
			state: in("integration/steering", "TestUpstreamInTrouble"), bound: in("internal/dns/forward", "TestSlowNames"),
			limit: limit{lost: 0, tcp: 0, p99: 2},
		},
		{
			name: "flood", title: "random-subdomain flood of 20,000/s from one pod", length: floodTime + time.Second, anywhere: true,
			state: in("integration/steering", "TestFlood"), bound: in("internal/dns/limit", "TestQuietPodIsServedInAFlood"),
			limit: limit{share: 0.005, tcpShare: 0.005, memory: 1.5},
		},
	}
}

// without is why the fault is not tried with one of the others; "": it is.
func (f fault) without(name string) string {
	if name != bare {
		return f.noStock
	}
	if !f.anywhere {
		return noCache
	}
	return ""
}

func in(folder, name string) cited.Test { return cited.Test{Folder: folder, Name: name} }

// evidence is the table of each fault's tests, as the page has it.
func evidence() string {
	var out strings.Builder
	out.WriteString("| fault | what happens | the rule, or the time on a virtual clock |\n| --- | --- | --- |\n")
	for _, f := range allFaults() {
		fmt.Fprintf(&out, "| %s | `%s` | `%s` |\n", f.title, f.state, f.bound)
	}
	return out.String()
}
