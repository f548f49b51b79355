package steer_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// host is the description that most kernel tests apply.
func host() steer.Host {
	return steer.Host{Redirects: []steer.Redirect{redirect4, redirect6}, Locals: []steer.Local{local4, local6}, Uplinks: []string{"eth0"}}
}

// generation is the number that the kernel raises at every nftables transaction of a namespace.
func generation(t testing.TB, ns *testutil.NetNS) uint32 {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request | netlink.Acknowledge},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(replies) == 0 {
		t.Fatalf("read generation: %v", err)
	}
	attrs, err := netlink.UnmarshalAttributes(replies[0].Data[4:])
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attrs {
		if a.Type == unix.NFTA_GEN_ID {
			return binary.BigEndian.Uint32(a.Data)
		}
	}
	t.Fatal("no generation in the kernel's reply")
	return 0
}

func ruleset(ns *testutil.NetNS) string { return ns.Run("nft", "-s", "list", "ruleset") }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestApplyIsIdempotent(t *testing.T) {
	testutil.RequireRoot(t)
	for name, rs := range rulesets() {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "apply")
			nft := open(t, ns)
			var drift *steer.DriftError
			if err := nft.Verify(rs); !errors.As(err, &drift) {
				t.Errorf("verify of nothing: %v", err)
			}
			must(t, nft.Apply(rs))
			must(t, nft.Verify(rs))
			before, listed := generation(t, ns), ruleset(ns)
			for range 3 {
				must(t, nft.Apply(rs))
				must(t, nft.Ensure(rs))
				must(t, nft.Verify(rs))
			}
			if whole, err := nft.Whole(rs); err != nil || !whole && !strings.HasSuffix(name, "-none") {
				t.Errorf("not whole: %v, %v", whole, err)
			}
			if after := generation(t, ns); after != before && name != "pod-none" { // an empty table is cheap to write again
				t.Errorf("%d transactions on an unchanged table", after-before)
			}
			if diff := cmp.Diff(listed, ruleset(ns)); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
		})
	}
}

// From every description to every other, in one table: what the kernel ends with is always the last one.
func TestApplyFromAnyToAny(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "any")
	nft := open(t, ns)
	all := rulesets()
	for from, a := range all {
		for to, b := range all {
			must(t, nft.Apply(a))
			if err := nft.Apply(b); err != nil {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
			if err := nft.Verify(b); err != nil {
				t.Errorf("%s to %s: %v", from, to, err)
			}
		}
	}
}

// The kernel counts timeouts in ticks of its clock: a lifetime that is no multiple of them must not be a drift for ever.
func TestAnyLifetimeIsStable(t *testing.T) {
	testutil.RequireRoot(t)
	nft := open(t, testutil.NewNS(t, "lifetime"))
	for _, life := range []time.Duration{1, time.Millisecond, 50 * time.Millisecond, 333 * time.Millisecond, 750 * time.Millisecond, 999 * time.Millisecond,
		1234567 * time.Microsecond, time.Minute + time.Millisecond} {
		h := host()
		h.Lifetime = life
		must(t, nft.Apply(h))
		if err := nft.Verify(h); err != nil {
			t.Errorf("lifetime %v: %v", life, err)
		}
	}
}

func TestOrderOfADescriptionHasNoMeaning(t *testing.T) {
	testutil.RequireRoot(t)
	nft := open(t, testutil.NewNS(t, "order"))
	must(t, nft.Apply(steer.Host{Redirects: []steer.Redirect{redirect4, redirect4b, redirect6}, Locals: []steer.Local{local4, local6}, Uplinks: []string{"a", "b"}}))
	must(t, nft.Verify(steer.Host{Redirects: []steer.Redirect{redirect6, redirect4b, redirect4}, Locals: []steer.Local{local6, local4}, Uplinks: []string{"b", "a", "b"}}))
}

// Each kind of damage is named so that an operator finds it, is seen whole by Apply, and Ensure never makes it worse.
func TestVerifyNamesDrift(t *testing.T) {
	testutil.RequireRoot(t)
	const table = "inet neardns"
	flushAll := func(ns *testutil.NetNS) { ns.Run("nft", "flush", "table", "inet", "neardns") }
	for _, c := range []struct {
		name   string
		damage string                   // nft commands
		first  func(ns *testutil.NetNS) // before them
		want   []string                 // in the error
	}{
		{name: "rule removed", damage: "delete rule " + table + " fallback4 handle HANDLE(fallback4,ip daddr set)",
			want: []string{"chain fallback4 lacks rule 4: ip daddr set ip daddr map @cluster4 accept"}},
		{name: "rule in the middle removed", damage: "delete rule " + table + " control4 handle HANDLE(control4,udp dport 117)",
			want: []string{"chain control4, rule 4 is not: udp dport 117 delete @lease_udp4 { ip daddr }"}},
		{name: "all rules of a chain removed", damage: "flush chain " + table + " switch6", want: []string{"chain switch6 lacks rule 1: meta l4proto udp"}},
		{name: "rule edited", damage: "replace rule " + table + " control4 handle HANDLE(control4,udp dport 17 ) udp dport 17 update @lease_udp4 { ip daddr timeout 60s }",
			want: []string{"chain control4, rule 1 is not: udp dport 17 update @lease_udp4 { ip daddr timeout 800ms }"}},
		{name: "verdict edited", damage: "replace rule " + table + " control6 handle HANDLE(control6,lease_datagrams) counter name lease_datagrams accept",
			want: []string{"chain control6, rule 17 is not: counter name \"lease_datagrams\" drop"}},
		{name: "rule added", damage: "add rule " + table + " switch4 ip daddr 192.0.2.1 drop", want: []string{"chain switch4 has 1 rules too many"}},
		{name: "foreign rule in front", damage: "insert rule " + table + " prerouting accept", want: []string{"chain prerouting, rule 1 is not: meta nfproto ipv4 udp dport 53 goto dns4"}},
		{name: "rule twice", damage: "add rule " + table + " answers4 notrack", want: []string{"chain answers4 has 1 rules too many"}},
		{name: "rules swapped", damage: "flush chain " + table + " answers4; add rule " + table + " answers4 ip saddr set ip saddr map @answer4; add rule " + table + " answers4 notrack",
			want: []string{"chain answers4, rule 1 is not: notrack"}},
		{name: "chain missing", damage: "flush chain " + table + " output; delete chain " + table + " answers6",
			want: []string{"chain answers6 is missing", "chain output lacks rule 1"}},
		{name: "base chain missing", damage: "flush chain " + table + " prerouting; delete chain " + table + " prerouting", want: []string{"chain prerouting is missing"}},
		{name: "base chain at another priority",
			damage: "flush chain " + table + " postrouting; delete chain " + table + " postrouting; add chain " + table + " postrouting { type filter hook postrouting priority 50; }",
			want:   []string{"chain postrouting hangs at"}},
		{name: "base chain's policy", damage: "chain " + table + " prerouting { policy drop; }", want: []string{`chain prerouting hangs at "type filter hook 0 priority -301 policy drop"`}},
		{name: "foreign chain", damage: "add chain " + table + " stranger { type filter hook input priority 0; policy drop; }", want: []string{"chain stranger is not ours"}},
		{name: "set missing", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4", want: []string{"set exempt4 is missing"}},
		{name: "map missing", damage: "flush chain " + table + " fallback6; delete map " + table + " cluster6", want: []string{"set cluster6 is missing"}},
		{name: "set of another shape", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4; add set " + table + " exempt4 { type ipv4_addr; flags timeout; timeout 1h; }",
			want: []string{"set exempt4 has another shape"}},
		{name: "interval set", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4; add set " + table + " exempt4 { type ipv4_addr; flags interval; }",
			want: []string{"set exempt4 has another shape"}},
		{name: "foreign set", damage: "add set " + table + " strange { type ipv4_addr; }", want: []string{"set strange is not ours"}},
		{name: "element missing", damage: "delete element " + table + " ours4 { 169.254.20.11 }", want: []string{"set ours4 lacks 169.254.20.11"}},
		{name: "interface missing", damage: "delete element " + table + " uplinks { \"eth0\" }", want: []string{"set uplinks lacks eth0"}},
		{name: "element mapped otherwise", damage: "delete element " + table + " cluster6 { fd00:90de:d95::b }; add element " + table + " cluster6 { fd00:90de:d95::b : fd00::bad }",
			want: []string{"set cluster6 lacks fd00:90de:d95::b : fd00:10:96::a", "set cluster6 has 1 foreign elements"}},
		{name: "foreign element", damage: "add element " + table + " ours4 { 192.0.2.7, 192.0.2.8 }", want: []string{"set ours4 has 2 foreign elements"}},
		{name: "counter missing", first: flushAll, damage: "delete counter " + table + " dropped_uplink", want: []string{"counter dropped_uplink is missing"}},
		{name: "rules flushed", damage: "flush table " + table, want: []string{"chain dns4 lacks rule 1", "chain prerouting lacks rule 1", "chain output lacks rule 1"}},
		{name: "table dormant", damage: "add table " + table + " { flags dormant; }", want: []string{"table inet neardns is dormant"}},
		{name: "table gone", damage: "delete table " + table, want: []string{"table inet neardns is missing or empty"}},
		{name: "everything gone", damage: "flush ruleset", want: []string{"table inet neardns is missing or empty"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := testutil.NewNS(t, "drift")
			nft := open(t, ns)
			must(t, nft.Apply(host()))
			if c.first != nil {
				c.first(ns)
			}
			ns.RunInput(resolveHandles(t, ns, c.damage), "nft", "-f", "-")
			err := nft.Verify(host())
			var drift *steer.DriftError
			if !errors.As(err, &drift) {
				t.Errorf("verify: %v, want a *DriftError", err)
			} else {
				for _, want := range c.want {
					if !slices.ContainsFunc(drift.Items, func(i string) bool { return strings.Contains(i, want) }) {
						t.Errorf("drift %q does not name %q", drift.Items, want)
					}
				}
				t.Log(err)
			}
			must(t, nft.Ensure(host())) // may complete, must not fail
			still := nft.Verify(host())
			mended, err := nft.Repair(host())
			must(t, err)
			if errors.As(still, &drift) && !slices.Equal(mended, drift.Items) {
				t.Errorf("repair says %q, verify said %v", mended, still)
			}
			must(t, nft.Verify(host()))
		})
	}
}

var handleCall = regexp.MustCompile(`HANDLE\((\w+),([^)]*)\)`)

// resolveHandles replaces HANDLE(chain,text) by the handle of the chain's first rule that starts with or holds text.
func resolveHandles(t *testing.T, ns *testutil.NetNS, commands string) string {
	return handleCall.ReplaceAllStringFunc(commands, func(call string) string {
		m := handleCall.FindStringSubmatch(call)
		for line := range strings.Lines(ns.Run("nft", "-s", "-a", "list", "chain", "inet", "neardns", m[1])) {
			if at := strings.Index(line, "# handle "); at > 0 && strings.Contains(line, m[2]) && !strings.Contains(line, "chain ") {
				return strings.TrimSpace(line[at+len("# handle "):])
			}
		}
		t.Fatalf("no rule %q in chain %s", m[2], m[1])
		return ""
	})
}

// What packets and the plugin put into sets is no drift.
func TestVerifyAcceptsWhatLives(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "alive")
	nft := open(t, ns)
	must(t, nft.Apply(host()))
	ns.Run("nft", "add element inet neardns lease_udp4 { 169.254.20.11 timeout 1m }")
	ns.Run("nft", "add element inet neardns fallback_conn6 { fd00::1 . 4711 . fd00:90de:d95::b }")
	must(t, nft.Exempt(addr("10.244.0.7")))
	must(t, nft.Verify(host()))
	before := generation(t, ns)
	if drift, err := nft.Repair(host()); err != nil || len(drift) > 0 || generation(t, ns) != before {
		t.Errorf("repair of a table that only lives: %v, %v", drift, err)
	}
}

func TestRemoveLeavesNoResidue(t *testing.T) {
	testutil.RequireRoot(t)
	for name, rs := range rulesets() {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "remove")
			nft := open(t, ns)
			must(t, nft.Remove()) // there is none yet
			must(t, nft.Apply(rs))
			if present, err := nft.Present(); err != nil || !present {
				t.Errorf("present: %v, %v", present, err)
			}
			must(t, nft.Remove())
			must(t, nft.Remove())
			if present, err := nft.Present(); err != nil || present {
				t.Errorf("present after remove: %v, %v", present, err)
			}
			if got := ruleset(ns); got != "" {
				t.Errorf("residue:\n%s", got)
			}
			must(t, nft.Apply(rs))
			must(t, nft.Verify(rs))
		})
	}
}

// Tables of others, also those that carry our name in another family, and iptables' own, stay byte for byte.
func TestForeignTablesAreUntouched(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "foreign")
	const foreign = `
table ip neardns {
	set ours4 { type ipv4_addr; elements = { 192.0.2.1 }; }
	counter delivered_udp { packets 7 bytes 70 }
	chain prerouting { type filter hook prerouting priority raw; policy accept; ip daddr @ours4 counter name delivered_udp; }
}
table ip6 neardns { chain prerouting { type filter hook prerouting priority raw; policy accept; }; }
table bridge neardns { chain prerouting { type filter hook prerouting priority 0; policy accept; }; }
table inet firewalld { chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ct state established,related accept; }; }
table inet neardns-other { chain a { }; set neardns { type inet_service; elements = { 53 }; }; }
`
	ns.RunInput(foreign, "nft", "-f", "-")
	ns.Run("iptables", "-t", "raw", "-A", "PREROUTING", "-d", "169.254.20.11", "-j", "ACCEPT")
	before := ruleset(ns) + ns.Run("nft", "list", "table", "ip", "neardns")
	check := func(when string) {
		t.Helper()
		for block := range strings.SplitSeq(before, "\ntable ") {
			name, _, _ := strings.Cut(block, " {")
			if !strings.Contains(ruleset(ns)+ns.Run("nft", "list", "table", "ip", "neardns"), strings.TrimSpace(block)) {
				t.Errorf("%s: table %s is not as it was", when, name)
			}
		}
	}
	nft := open(t, ns)
	if present, err := nft.Present(); err != nil || present {
		t.Errorf("another family's table counts as ours: %v, %v", present, err)
	}
	if err := nft.Verify(host()); err == nil {
		t.Error("another family's table counts as ours")
	}
	must(t, nft.Ensure(host()))
	check("ensure")
	for name, rs := range rulesets() {
		must(t, nft.Apply(rs))
		must(t, nft.Verify(rs))
		check("apply " + name)
	}
	must(t, nft.Apply(host()))
	must(t, nft.Exempt(addr("10.244.0.1")))
	must(t, nft.Unexempt(addr("10.244.0.1")))
	check("exempt")
	must(t, nft.Supported())
	check("supported")
	must(t, nft.Remove())
	check("remove")
	if got := ruleset(ns) + ns.Run("nft", "list", "table", "ip", "neardns"); got != before {
		t.Errorf("after remove (-before +after):\n%s", cmp.Diff(before, got))
	}
}

// older is a table of an imagined older version: other rules, a chain that is no more, a set of another shape, and counters
// and leases that live.
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
	nft := open(t, ns)
	ns.RunInput(older, "nft", "-f", "-")
	must(t, nft.Apply(host()))
	must(t, nft.Verify(host()))
	counters, err := nft.Counters()
	must(t, err)
	if got := counters[steer.CounterDeliveredUDP]; got != (steer.Counter{Packets: 1234, Bytes: 56789}) {
		t.Errorf("counter lost: %v", got)
	}
	if got := counters[steer.CounterFallbackTCP]; got != (steer.Counter{Packets: 5, Bytes: 300}) {
		t.Errorf("counter lost: %v", got)
	}
	leases, err := nft.Leases()
	must(t, err)
	if len(leases) != 2 || leases[0].Address != redirect4.Steering || leases[0].Expires < 9*60e9 {
		t.Errorf("leases lost: %v", leases)
	}
	if got := ns.Run("nft", "list", "set", "inet", "neardns", "exempt4"); !strings.Contains(got, "10.244.0.9") {
		t.Errorf("exempt pod lost:\n%s", got)
	}
}

// A table with other rules of ours in it keeps them: Ensure adds objects and addresses, and edits and removes nothing.
func TestEnsureAddsOnly(t *testing.T) {
	testutil.RequireRoot(t)
	t.Run("nothing there", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		must(t, nft.Ensure(host()))
		must(t, nft.Verify(host()))
	})
	t.Run("an older version", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		ns.RunInput(older, "nft", "-f", "-")
		before := ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "prerouting") + ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "switch4") +
			ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "old4")
		h := host()
		h.Redirects = append(h.Redirects, redirect4b)
		must(t, nft.Ensure(h))
		after := ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "prerouting") + ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "switch4") +
			ns.Run("nft", "-s", "list", "chain", "inet", "neardns", "old4")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("chains with rules changed:\n%s", diff)
		}
		if got := ns.Run("nft", "list", "map", "inet", "neardns", "cluster4"); !strings.Contains(got, "169.254.20.12 : 10.96.0.11") {
			t.Errorf("address not added:\n%s", got)
		}
	})
	t.Run("another redirect", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		must(t, nft.Apply(host()))
		h := host()
		h.Redirects = append(h.Redirects, redirect4b)
		must(t, nft.Ensure(h))
		must(t, nft.Verify(h))
	})
	t.Run("fewer", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		must(t, nft.Apply(host()))
		before := generation(t, ns)
		must(t, nft.Ensure(steer.Host{Redirects: []steer.Redirect{redirect6}, Uplinks: []string{"other0"}}))
		must(t, nft.Verify(host()))
		if generation(t, ns) != before {
			t.Error("a transaction where nothing is missing")
		}
	})
	t.Run("mapped otherwise", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		must(t, nft.Apply(host()))
		must(t, nft.Ensure(steer.Host{Redirects: []steer.Redirect{{ClusterDNS: addr("10.96.0.99"), Steering: redirect4.Steering}}}))
		must(t, nft.Verify(host()))
	})
	t.Run("rules flushed", func(t *testing.T) {
		ns := testutil.NewNS(t, "ensure")
		nft := open(t, ns)
		must(t, nft.Apply(host()))
		ns.Run("nft", "flush", "table", "inet", "neardns")
		must(t, nft.Ensure(host()))
		must(t, nft.Verify(host()))
	})
}

func TestWholeAndUplinks(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "whole")
	nft := open(t, ns)
	want := func(want bool, rs steer.Ruleset, why string) {
		t.Helper()
		if got, err := nft.Whole(rs); err != nil || got != want {
			t.Errorf("%s: whole is %v, %v", why, got, err)
		}
	}
	uplink := func(want bool, name string) {
		t.Helper()
		if got, err := nft.IsUplink(name); err != nil || got != want {
			t.Errorf("%s is an uplink: %v, %v", name, got, err)
		}
	}
	want(false, host(), "no table")
	uplink(false, "eth0")
	must(t, nft.Apply(host()))
	want(true, host(), "applied")
	want(true, steer.Host{Redirects: []steer.Redirect{redirect4}}, "fewer addresses")
	want(true, steer.Host{Redirects: []steer.Redirect{redirect4}, Uplinks: []string{"other0"}}, "uplinks are the agent's business")
	want(false, steer.Host{Redirects: []steer.Redirect{redirect4b}}, "an address more")
	uplink(true, "eth0")
	uplink(false, "eth")
	uplink(false, "eth00")
	ns.Run("nft", "delete element inet neardns ours4 { 169.254.20.11 }")
	want(false, host(), "an address less")
	must(t, nft.Apply(host()))
	ns.Run("nft", "flush", "ruleset")
	want(false, host(), "flushed")
}

func TestExempt(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "exempt")
	nft := open(t, ns)
	must(t, nft.Unexempt(addr("10.244.0.1"))) // no table: nothing to take back
	must(t, nft.Apply(host()))
	a, b, c := addr("10.244.0.1"), addr("fd00:244::1"), addr("10.244.0.2")
	must(t, nft.Exempt(a, b))
	must(t, nft.Exempt(a, c))
	list := func() string {
		return ns.Run("nft", "list", "set", "inet", "neardns", "exempt4") + ns.Run("nft", "list", "set", "inet", "neardns", "exempt6")
	}
	for _, want := range []string{a.String(), b.String(), c.String()} {
		if !strings.Contains(list(), want) {
			t.Errorf("%s is not exempt:\n%s", want, list())
		}
	}
	must(t, nft.Verify(host()))
	must(t, nft.Apply(host())) // keeps the plugin's elements
	before := generation(t, ns)
	must(t, nft.Exempt(a, b, c))
	if generation(t, ns) != before {
		t.Error("a transaction for what is exempt already")
	}
	must(t, nft.Unexempt(a, addr("192.0.2.9")))
	if got := list(); strings.Contains(got, a.String()+",") || strings.Contains(got, a.String()+" ") || !strings.Contains(got, c.String()) {
		t.Errorf("after unexempt of %s:\n%s", a, got)
	}
	h := host()
	h.Exempt = []netip.Addr{a, b}
	if err := nft.Verify(h); err == nil || !strings.Contains(err.Error(), "set exempt4 lacks 10.244.0.1") {
		t.Errorf("verify with a pod that should be exempt: %v", err)
	}
	must(t, nft.Apply(h))
	must(t, nft.Verify(h))
	must(t, nft.Unexempt(a, b, c))
	if got := list(); strings.Contains(got, "elements") {
		t.Errorf("left over:\n%s", got)
	}
}

func TestExemptNeedsTheSwitch(t *testing.T) {
	testutil.RequireRoot(t)
	nft := open(t, testutil.NewNS(t, "exempt"))
	if err := nft.Exempt(addr("10.244.0.1")); err == nil {
		t.Error("a pod exempted in a table that is not there, without an error")
	}
}

func TestSupportedLeavesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "supported")
	nft := open(t, ns)
	before := generation(t, ns)
	must(t, nft.Supported())
	if got := ruleset(ns); got != "" || generation(t, ns) != before {
		t.Errorf("left, by %d transactions:\n%s", generation(t, ns)-before, got)
	}
	must(t, nft.Apply(host())) // the socket is still of use
	must(t, nft.Supported())
	must(t, nft.Verify(host()))
}

func TestCountersOfNothing(t *testing.T) {
	testutil.RequireRoot(t)
	nft := open(t, testutil.NewNS(t, "counters"))
	if got, err := nft.Counters(); err != nil || len(got) != 0 {
		t.Errorf("counters of no table: %v, %v", got, err)
	}
	if got, err := nft.Leases(); err != nil || len(got) != 0 {
		t.Errorf("leases of no table: %v, %v", got, err)
	}
	must(t, nft.Apply(host()))
	got, err := nft.Counters()
	must(t, err)
	for _, name := range []string{steer.CounterDeliveredUDP, steer.CounterDeliveredTCP, steer.CounterFallbackUDP, steer.CounterFallbackTCP, steer.CounterProbe,
		steer.CounterHostUDP, steer.CounterHostTCP, steer.CounterUplinkDrop, steer.CounterLeaseRenewal} {
		if c, ok := got[name]; !ok || c != (steer.Counter{}) {
			t.Errorf("counter %s: %v, %v", name, c, ok)
		}
	}
}

// The back end's namespace is the one of its descriptor, whichever thread calls; its sockets hold it after the descriptor
// is closed, and Close gives everything back.
func TestNamespaceByDescriptor(t *testing.T) {
	testutil.RequireRoot(t)
	a, b := testutil.NewNS(t, "a"), testutil.NewNS(t, "b")
	fd, err := os.Open(a.Path())
	must(t, err)
	nft, err := steer.OpenNftables(int(fd.Fd()))
	must(t, err)
	must(t, fd.Close()) // its number is the next one's
	b.Do(func() { err = nft.Apply(brokenHost()) })
	if err == nil {
		t.Error("a broken table was taken")
	}
	b.Do(func() { err = nft.Apply(host()) })
	must(t, err)
	if ruleset(b) != "" || !strings.Contains(ruleset(a), "table inet neardns") {
		t.Error("rules in the wrong namespace")
	}
	must(t, nft.Close())

	var here *steer.Nftables
	b.Do(func() { here, err = steer.OpenNftables(-1) }) // the calling thread's
	must(t, err)
	if err := here.Apply(brokenHost()); err == nil { // the socket that comes after an error is of the same namespace
		t.Error("a broken table was taken")
	}
	must(t, here.Apply(steer.Pod{Redirects: []steer.Redirect{redirect4}}))
	if !strings.Contains(ruleset(b), "postrouting") || strings.Contains(ruleset(a), "daddr set 169.254.20.11") {
		t.Error("-1 is not the calling thread's namespace")
	}
	must(t, here.Close())

	if _, err := steer.OpenNftables(1 << 20); err == nil {
		t.Error("a descriptor that is not open was taken")
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = null.Close() }()
	if _, err := steer.OpenNftables(int(null.Fd())); err == nil {
		t.Error("a descriptor that is no namespace was taken")
	}
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "fds")
	round := func() {
		nft, err := steer.OpenNftables(ns.FD())
		must(t, err)
		must(t, nft.Apply(host()))
		if err := nft.Apply(brokenHost()); err == nil { // an error replaces the socket
			t.Fatal("a table that the kernel cannot take was taken")
		}
		must(t, nft.Supported())
		must(t, nft.Apply(host()))
		must(t, nft.Close())
		_, _ = steer.OpenNftables(1 << 20)
	}
	round()
	before := openFiles(t)
	for range 20 {
		round()
	}
	if after := openFiles(t); after > before+3 { // the runtime's own
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// brokenHost is refused by the kernel: one key of a map with two values.
func brokenHost() steer.Host {
	h := host()
	h.Locals = append(slices.Clone(h.Locals), steer.Local{Address: redirect4.Steering, ClusterDNS: addr("10.96.0.99")})
	return h
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// A transaction that the kernel refuses changes nothing at all.
func TestFailedApplyChangesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "refused")
	nft := open(t, ns)
	must(t, nft.Apply(steer.Host{Redirects: []steer.Redirect{redirect4b}, Uplinks: []string{"eth7"}}))
	before := ruleset(ns)
	err := nft.Apply(brokenHost())
	if err == nil {
		t.Fatal("one steering address mapped twice was taken")
	}
	t.Log(err)
	if diff := cmp.Diff(before, ruleset(ns)); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
	if !strings.HasPrefix(fmt.Sprint(err), "apply rules: ") {
		t.Errorf("error does not say what was tried: %v", err)
	}
}
