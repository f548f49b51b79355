package nft_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Verify names each kind of damage, Apply repairs all of it, and Ensure never makes it worse.
func TestVerifyNamesDrift(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "drift")
	backend := open(t, ns)
	must(t, backend.Apply(host()))
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
		{name: "all rules of a chain removed", damage: "flush chain " + table + " switch6", want: []string{"chain switch6 lacks rule 1: iif"}},
		{name: "rule edited", damage: "replace rule " + table + " control4 handle HANDLE(control4,udp dport 17 ) udp dport 17 update @lease_udp4 { ip daddr timeout 60s }",
			want: []string{"chain control4, rule 1 is not: udp dport 17 update @lease_udp4 { ip daddr timeout 800ms }"}},
		{name: "verdict edited", damage: "replace rule " + table + " control6 handle HANDLE(control6,lease_datagrams) counter name lease_datagrams accept",
			want: []string{"chain control6, rule 16 is not: counter name \"lease_datagrams\" drop"}},
		{name: "rule added", damage: "add rule " + table + " switch4 ip daddr 192.0.2.1 drop", want: []string{"chain switch4 has 1 rules too many"}},
		{name: "foreign rule in front", damage: "insert rule " + table + " prerouting accept", want: []string{"chain prerouting, rule 1 is not: meta nfproto ipv4 udp dport 53 goto dns4"}},
		{name: "rule twice", damage: "add rule " + table + " answers4 notrack", want: []string{"chain answers4 has 1 rules too many"}},
		{name: "rules swapped", damage: "flush chain " + table + " answers4; add rule " + table + " answers4 ip saddr set ip saddr map @answer4; add rule " + table + " answers4 notrack",
			want: []string{"chain answers4, rule 1 is not: notrack"}},
		{name: "chain missing", damage: "flush chain " + table + " output; delete chain " + table + " answers6",
			want: []string{"chain answers6 is missing", "chain output lacks rule 1"}},
		{name: "chain renamed", damage: "rename chain " + table + " dns4 elsewhere", want: []string{"chain dns4 is missing", "chain elsewhere is not one of"}},
		{name: "base chain missing", damage: "flush chain " + table + " prerouting; delete chain " + table + " prerouting", want: []string{"chain prerouting is missing"}},
		{name: "base chain at another priority",
			damage: "flush chain " + table + " postrouting; delete chain " + table + " postrouting; add chain " + table + " postrouting { type filter hook postrouting priority 50; }",
			want:   []string{"chain postrouting is attached at"}},
		{name: "base chain's policy", damage: "chain " + table + " prerouting { policy drop; }", want: []string{`chain prerouting is attached at "type filter hook 0 priority -301 policy drop"`}},
		{name: "foreign chain", damage: "add chain " + table + " stranger { type filter hook input priority 0; policy drop; }", want: []string{"chain stranger is not one of this version's"}},
		{name: "set missing", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4", want: []string{"set exempt4 is missing"}},
		{name: "map missing", damage: "flush chain " + table + " fallback6; delete map " + table + " cluster6", want: []string{"set cluster6 is missing"}},
		{name: "set of another shape", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4; add set " + table + " exempt4 { type ipv4_addr; flags timeout; timeout 1h; }",
			want: []string{"set exempt4 has another shape"}},
		{name: "interval set", damage: "flush chain " + table + " dns4; delete set " + table + " exempt4; add set " + table + " exempt4 { type ipv4_addr; flags interval; }",
			want: []string{"set exempt4 has another shape"}},
		{name: "foreign set", damage: "add set " + table + " strange { type ipv4_addr; }", want: []string{"set strange is not one of this version's"}},
		{name: "element missing", damage: "delete element " + table + " ours4 { 169.254.20.11 }", want: []string{"set ours4 lacks 169.254.20.11"}},
		{name: "interface missing", damage: "delete element " + table + " uplinks { \"eth0\" }", want: []string{"set uplinks lacks eth0"}},
		{name: "element mapped otherwise", damage: "delete element " + table + " cluster6 { fd00:90de:d95::b }; add element " + table + " cluster6 { fd00:90de:d95::b : fd00::bad }",
			want: []string{"set cluster6 lacks fd00:90de:d95::b : fd00:10:96::a", "set cluster6 has 1 unexpected elements"}},
		{name: "foreign element", damage: "add element " + table + " ours4 { 192.0.2.7, 192.0.2.8 }", want: []string{"set ours4 has 2 unexpected elements"}},
		{name: "counter missing", first: flushAll, damage: "delete counter " + table + " refused_uplink", want: []string{"counter refused_uplink is missing"}},
		{name: "rules flushed", damage: "flush table " + table, want: []string{"chain dns4 lacks rule 1", "chain prerouting lacks rule 1", "chain output lacks rule 1"}},
		{name: "table dormant", damage: "add table " + table + " { flags dormant; }", want: []string{"table inet neardns is dormant"}},
		{name: "table gone", damage: "delete table " + table, want: []string{"table inet neardns is missing or empty"}},
		{name: "everything gone", damage: "flush ruleset", want: []string{"table inet neardns is missing or empty"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.first != nil {
				c.first(ns)
			}
			ns.RunInput(resolveHandles(t, ns, c.damage), "nft", "-f", "-")
			err := backend.Verify(host())
			var drift *steer.DriftError
			if !errors.As(err, &drift) {
				t.Errorf("verify: %v, want a *DriftError", err)
			} else {
				for _, want := range c.want {
					if !slices.ContainsFunc(drift.Items, func(i string) bool { return strings.Contains(i, want) }) {
						t.Errorf("drift %q does not name %q", drift.Items, want)
					}
				}
			}
			before := generation(t, ns)
			must(t, backend.Ensure(host())) // may complete, must not fail
			untouched := generation(t, ns) == before
			mended, errRepair := backend.Repair(host())
			must(t, errRepair)
			if untouched && !slices.Equal(mended, drift.Items) {
				t.Errorf("Repair returns %q, Verify returned %v", mended, err)
			}
			must(t, backend.Verify(host()))
		})
	}
}

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

// Set elements that packets or the plugin added are no drift.
func TestVerifyAcceptsWhatLives(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "alive")
	backend := open(t, ns)
	must(t, backend.Apply(host()))
	ns.Run("nft", "add element inet neardns lease_udp4 { 169.254.20.11 timeout 1m }")
	ns.Run("nft", "add element inet neardns fallback_conn6 { fd00::1 . 4711 . fd00:90de:d95::b }")
	must(t, backend.Exempt([]netip.Addr{addr("10.244.0.7")}, nil))
	must(t, backend.Verify(host()))
	before := generation(t, ns)
	if drift, err := backend.Repair(host()); err != nil || len(drift) > 0 || generation(t, ns) != before {
		t.Errorf("repair of a table that only lives: %v, %v", drift, err)
	}
}

func TestWholeAndUplinks(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "whole")
	backend := open(t, ns)
	want := func(want bool, rs steer.Host, why string) {
		t.Helper()
		if got, err := backend.IsComplete(rs); err != nil || got != want {
			t.Errorf("%s: whole is %v, %v", why, got, err)
		}
	}
	uplink := func(want bool, name string) {
		t.Helper()
		if got, err := backend.IsUplink(name); err != nil || got != want {
			t.Errorf("%s is an uplink: %v, %v", name, got, err)
		}
	}
	want(false, host(), "no table")
	uplink(false, "eth0")
	must(t, backend.Apply(host()))
	want(true, host(), "applied")
	want(true, steer.Host{Redirects: []steer.Redirect{redirect4}}, "fewer addresses")
	want(true, steer.Host{Redirects: []steer.Redirect{redirect4}, Uplinks: []string{"other0"}}, "uplinks are the agent's business")
	want(false, steer.Host{Redirects: []steer.Redirect{redirect4b}}, "an address more")
	uplink(true, "eth0")
	uplink(false, "eth")
	uplink(false, "eth00")
	ns.Run("nft", "delete element inet neardns ours4 { 169.254.20.11 }")
	want(false, host(), "an address less")
	must(t, backend.Apply(host()))
	ns.Run("nft", "flush", "ruleset")
	want(false, host(), "flushed")
}
