package nft_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// host is the description that most kernel tests apply.
func host() steer.Host {
	return steer.Host{Redirects: []steer.Redirect{redirect4, redirect6}, Locals: []steer.Local{local4, local6}, Uplinks: []string{"eth0"}, Secret: testSecret}
}

// lasting is host with leases that no test outlasts.
func lasting() steer.Host {
	h := host()
	h.Lifetime = rig.Forever
	return h
}

// testSecret is the default secret of a Lease in these tests.
const testSecret = rig.Secret

// generation is the number that the kernel raises at every nftables transaction of a namespace.
func generation(t testing.TB, ns *testutil.NetNS) uint32 {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	testutil.Must(t, err)
	defer func() { _ = conn.Close() }()
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request | netlink.Acknowledge},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(replies) == 0 {
		t.Fatalf("read generation: %v", err)
	}
	attrs, err := netlink.UnmarshalAttributes(replies[0].Data[4:])
	testutil.Must(t, err)
	for _, a := range attrs {
		if a.Type == unix.NFTA_GEN_ID {
			return binary.BigEndian.Uint32(a.Data)
		}
	}
	t.Fatal("no generation in the kernel's reply")
	return 0
}

func ruleset(ns *testutil.NetNS) string { return ns.Run("nft", "-s", "list", "ruleset") }

var must = testutil.Must

// Apply and Remove twice do what they do once, and Remove leaves nothing.
func TestApplyIsIdempotent(t *testing.T) {
	testutil.RequireRoot(t)
	for name, rs := range rulesets() {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "apply")
			backend := open(t, ns)
			var drift *steer.DriftError
			if err := backend.Verify(rs); !errors.As(err, &drift) {
				t.Errorf("verify of nothing: %v", err)
			}
			must(t, backend.Remove())
			must(t, backend.Apply(rs))
			if present, err := backend.Present(); err != nil || !present {
				t.Errorf("present: %v, %v", present, err)
			}
			must(t, backend.Verify(rs))
			before, listed := generation(t, ns), ruleset(ns)
			must(t, backend.Apply(rs))
			if h, ok := rs.(steer.Host); ok {
				must(t, backend.Ensure(h))
				if whole, err := backend.IsComplete(h); err != nil || !whole && name != "host-none" {
					t.Errorf("not whole: %v, %v", whole, err)
				}
			}
			must(t, backend.Verify(rs))
			if after := generation(t, ns); after != before && name != "pod-none" { // an empty table is cheap to write again
				t.Errorf("%d transactions on an unchanged table", after-before)
			}
			testutil.Equal(t, "the rules", listed, ruleset(ns))
			must(t, backend.Remove())
			must(t, backend.Remove())
			must(t, backend.Supported())
			if present, err := backend.Present(); err != nil || present {
				t.Errorf("present after remove: %v, %v", present, err)
			}
			testutil.Equal(t, "residue", "", ruleset(ns))
			must(t, backend.Apply(rs))
			must(t, backend.Verify(rs))
		})
	}
}

// Apply changes one table from every description to every other: the kernel always ends with the last one.
func TestApplyFromAnyToAny(t *testing.T) {
	testutil.RequireRoot(t)
	backend := open(t, testutil.NewNS(t, "any"))
	all, from := rulesets(), "none"
	apply := func(to string) {
		testutil.Check(t, errors.Join(backend.Apply(all[to]), backend.Verify(all[to])), from+" to "+to)
		from = to
	}
	names := slices.Sorted(maps.Keys(all))
	for i, a := range names { // a path that goes from each to each other once
		apply(a)
		apply(a)
		for _, b := range names[i+1:] {
			apply(b)
			apply(a)
		}
	}
}

// The kernel counts timeouts in ticks of its clock: a lifetime that is no multiple of a tick must not count as drift.
func TestAnyLifetimeIsStable(t *testing.T) {
	testutil.RequireRoot(t)
	backend := open(t, testutil.NewNS(t, "lifetime"))
	for _, life := range []time.Duration{1, time.Millisecond, 50 * time.Millisecond, 333 * time.Millisecond, 750 * time.Millisecond, 999 * time.Millisecond,
		1234567 * time.Microsecond, time.Minute + time.Millisecond} {
		h := steer.Host{Redirects: []steer.Redirect{redirect4}, Lifetime: life}
		must(t, backend.Apply(h))
		testutil.Check(t, backend.Verify(h), life.String())
	}
}

func TestOrderOfADescriptionHasNoMeaning(t *testing.T) {
	testutil.RequireRoot(t)
	backend := open(t, testutil.NewNS(t, "order"))
	must(t, backend.Apply(steer.Host{Redirects: []steer.Redirect{redirect4, redirect4b, redirect6}, Locals: []steer.Local{local4, local6}, Uplinks: []string{"a", "b"}}))
	must(t, backend.Verify(steer.Host{Redirects: []steer.Redirect{redirect6, redirect4b, redirect4}, Locals: []steer.Local{local6, local4}, Uplinks: []string{"b", "a", "b"}}))
}

var handleCall = regexp.MustCompile(`HANDLE\((\w+),([^)]*)\)`)

// older is a table of an imagined older version: other rules, a chain that no longer exists, a set of another shape, and counters
// and leases in use.
const older = `
table inet neardns {
	counter delivered_udp { packets 1234 bytes 56789 }
	counter fallback_tcp { packets 5 bytes 300 }
	set ours4 { type ipv4_addr; elements = { 169.254.20.11 }; }
	map cluster4 { type ipv4_addr : ipv4_addr; elements = { 169.254.20.11 : 10.96.0.10 }; }
	set uplinks { type ifname; elements = { "eth0" }; }
	set lease_udp4 { type ipv4_addr; size 256; flags dynamic,timeout; elements = { 169.254.20.11 timeout 10m }; }
	set lease_tcp4 { type ipv4_addr; size 256; flags dynamic,timeout; elements = { 169.254.20.11 timeout 10m }; }
	set exempt4 { type ipv4_addr; elements = { 10.244.0.9 }; }
	set fallback_conn4 { type ipv4_addr . inet_service; size 1024; flags dynamic,timeout; timeout 1m; }
	chain old4 { ip saddr . tcp sport @fallback_conn4 drop; }
	chain switch4 { ip daddr @lease_udp4 counter name delivered_udp accept; tcp dport 53 goto old4; }
	chain prerouting { type filter hook prerouting priority -290; policy accept; ip daddr @ours4 goto switch4; }
	chain output { type filter hook output priority raw; policy accept; }
}
`

func TestUpgradeKeepsLeasesAndCounters(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "upgrade")
	backend := open(t, ns)
	ns.RunInput(older, "nft", "-f", "-")
	must(t, backend.Apply(host()))
	must(t, backend.Verify(host()))
	counters, err := backend.Counters()
	must(t, err)
	testutil.Equal(t, "delivered_udp", steer.Counter{Packets: 1234, Bytes: 56789}, counters[steer.CounterDeliveredUDP])
	testutil.Equal(t, "fallback_tcp", steer.Counter{Packets: 5, Bytes: 300}, counters[steer.CounterFallbackTCP])
	leases, err := backend.Leases()
	must(t, err)
	if len(leases) != 2 || leases[0].Address != redirect4.Steering || leases[0].Expires < 9*60e9 {
		t.Errorf("leases lost: %v", leases)
	}
	if got := ns.Run("nft", "list", "set", "inet", "neardns", "exempt4"); !strings.Contains(got, "10.244.0.9") {
		t.Errorf("exempt pod lost:\n%s", got)
	}
}

// Ensure adds objects and addresses to a table with another version's rules, and changes and removes nothing.
func TestEnsureAddsOnly(t *testing.T) {
	testutil.RequireRoot(t)
	t.Run("an older version", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		backend := open(t, ns)
		ns.RunInput(older, "nft", "-f", "-")
		chains := func() (out []string) {
			for _, name := range []string{"prerouting", "switch4", "old4"} {
				out = append(out, ns.Run("nft", "-s", "list", "chain", "inet", "neardns", name))
			}
			return out
		}
		before := chains()
		h := host()
		h.Redirects = append(h.Redirects, redirect4b)
		must(t, backend.Ensure(h))
		testutil.Equal(t, "chains with rules", before, chains())
		if got := ns.Run("nft", "list", "map", "inet", "neardns", "cluster4"); !strings.Contains(got, "169.254.20.12 : 10.96.0.11") {
			t.Errorf("address not added:\n%s", got)
		}
	})
	t.Run("fewer", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		backend := open(t, ns)
		must(t, backend.Apply(host()))
		before := generation(t, ns)
		must(t, backend.Ensure(steer.Host{Redirects: []steer.Redirect{redirect6}, Uplinks: []string{"other0"}}))
		must(t, backend.Verify(host()))
		if generation(t, ns) != before {
			t.Error("a transaction where nothing is missing")
		}
	})
	t.Run("mapped otherwise", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		backend := open(t, ns)
		must(t, backend.Apply(host()))
		must(t, backend.Ensure(steer.Host{Redirects: []steer.Redirect{{ClusterDNS: addr("10.96.0.99"), Steering: redirect4.Steering}}}))
		must(t, backend.Verify(host()))
	})
}

func TestExempt(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "exempt")
	backend := open(t, ns)
	a, b, c := addr("10.244.0.1"), addr("fd00:244::1"), addr("10.244.0.2")
	must(t, backend.Exempt(nil, []netip.Addr{a})) // no table, so nothing to remove
	if err := backend.Exempt([]netip.Addr{a}, nil); err == nil {
		t.Error("a pod exempted in a table that is not there, without an error")
	}
	must(t, backend.Apply(host()))
	must(t, backend.Exempt([]netip.Addr{a, b}, nil))
	must(t, backend.Exempt([]netip.Addr{a, c}, nil))
	list := func() string {
		return ns.Run("nft", "list", "set", "inet", "neardns", "exempt4") + ns.Run("nft", "list", "set", "inet", "neardns", "exempt6")
	}
	for _, want := range []string{a.String(), b.String(), c.String()} {
		if !strings.Contains(list(), want) {
			t.Errorf("%s is not exempt:\n%s", want, list())
		}
	}
	must(t, backend.Verify(host()))
	must(t, backend.Apply(host())) // keeps the plugin's elements
	before := generation(t, ns)
	must(t, backend.Exempt([]netip.Addr{a, b, c}, nil))
	if generation(t, ns) != before {
		t.Error("a transaction for what is exempt already")
	}
	must(t, backend.Exempt(nil, []netip.Addr{a, addr("192.0.2.9")}))
	if got := list(); strings.Contains(got, a.String()+",") || strings.Contains(got, a.String()+" ") || !strings.Contains(got, c.String()) {
		t.Errorf("after unexempt of %s:\n%s", a, got)
	}
	h := host()
	h.Exempt = []netip.Addr{a, b}
	testutil.WantError(t, backend.Verify(h), "set exempt4 lacks 10.244.0.1", "with a pod that should be exempt")
	must(t, backend.Apply(h))
	must(t, backend.Verify(h))
	must(t, backend.Exempt(nil, []netip.Addr{a, b, c}))
	if got := list(); strings.Contains(got, "elements") {
		t.Errorf("left over:\n%s", got)
	}
}

func TestCountersOfNothing(t *testing.T) {
	testutil.RequireRoot(t)
	backend := open(t, testutil.NewNS(t, "counters"))
	if got, err := backend.Counters(); err != nil || len(got) != 0 {
		t.Errorf("counters of no table: %v, %v", got, err)
	}
	if got, err := backend.Leases(); err != nil || len(got) != 0 {
		t.Errorf("leases of no table: %v, %v", got, err)
	}
	must(t, backend.Apply(host()))
	got, err := backend.Counters()
	must(t, err)
	for _, name := range []string{steer.CounterDeliveredUDP, steer.CounterDeliveredTCP, steer.CounterFallbackUDP, steer.CounterFallbackTCP, steer.CounterProbe,
		steer.CounterHostUDP, steer.CounterHostTCP, steer.CounterUplink, steer.CounterStranger, steer.CounterLeaseRenewal} {
		if c, ok := got[name]; !ok || c != (steer.Counter{}) {
			t.Errorf("counter %s: %v, %v", name, c, ok)
		}
	}
}

// A table that only records connections differs from the steering one in one chain, and Repair makes it steer.
func TestNote(t *testing.T) {
	testutil.RequireRoot(t)
	n := open(t, testutil.NewNS(t, "note"))
	p := steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}
	for range 2 { // the second time, the table exists already
		if recording, err := n.RecordConnections(p); err != nil || !recording {
			t.Fatalf("notes: %v, %v", recording, err)
		}
	}
	var drift *steer.DriftError
	if err := n.Verify(p); !errors.As(err, &drift) || len(drift.Items) != 1 || !strings.Contains(drift.Items[0], "chain dns1") {
		t.Errorf("a table that only notes differs by %v, want chain dns1 alone", err)
	}
	_, err := n.Repair(p)
	must(t, errors.Join(err, n.Verify(p)))
	if recording, err := n.RecordConnections(p); err != nil || recording {
		t.Errorf("a table that steers notes: %v, %v", recording, err)
	}
	must(t, n.Verify(p))
}
