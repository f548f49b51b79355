package iptables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func state(ns *testutil.NetNS) string {
	var out strings.Builder
	for _, args := range [][]string{{"-d", "rule"}, {"-d", "-6", "rule"}, {"route", "show", "table", "all"}, {"-6", "route", "show", "table", "all"}, {"-br", "link"}} {
		out.WriteString(ns.Run(append([]string{"ip"}, args...)...))
	}
	return out.String()
}

// TestHairpin makes, keeps, changes and removes the hairpin; nothing else may change.
func TestHairpin(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ns.Run("ip", "rule", "add", "pref", "97", "to", "192.0.2.1", "lookup", "7") // another program's rule with one of neardns's priorities
	ns.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	before := state(ns)
	tn := openHairpin(t, ns)
	a, b, c := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a"), netip.MustParseAddr("10.96.0.11")
	ensure := func(want string, addrs ...netip.Addr) {
		t.Helper()
		mended, err := tn.Ensure(addrs, false)
		must(t, err)
		testutil.Equal(t, "repaired", want, strings.Join(mended, ", "))
	}
	const all = "link neardns-turn0, address of neardns-turn1, settings of neardns-turn0, routes of neardns-turn0, routing rules of neardns-turn0"
	mended, err := tn.Ensure([]netip.Addr{a, b}, false)
	must(t, err)
	if got := strings.Join(mended, ", "); !strings.HasPrefix(got, all) {
		t.Errorf("mended %q at first", got)
	}
	ensure("", a, b)
	for _, end := range []string{"neardns-turn0", "neardns-turn1"} {
		testutil.Equal(t, "rp_filter of "+end+" under a strict filter", "2\n", ns.Run("cat", "/proc/sys/net/ipv4/conf/"+end+"/rp_filter"))
	}
	ns.Run("ip", "rule", "del", "pref", "96")
	ensure("routing rules of neardns-turn0", a, b)
	ns.Run("ip", "route", "flush", "table", "5353")
	ensure("routes of neardns-turn0", a, b)
	ns.Down("neardns-turn1")
	if mended, err := tn.Ensure([]netip.Addr{a, b}, false); err != nil || len(mended) == 0 {
		t.Errorf("a link that was set down: %v, %v", mended, err)
	}
	ensure("", a, b)
	ensure("routes of neardns-turn0, routing rules of neardns-turn0", c, b)
	if rules := ns.Run("ip", "rule"); strings.Contains(rules, "10.96.0.10 ") || !strings.Contains(rules, "10.96.0.11 ") {
		t.Errorf("rules after a change:\n%s", rules)
	}
	// Marked packets of the node's own processes go there, too.
	marked := func() bool {
		return strings.Contains(ns.Run("ip", "rule"), "from all to 10.96.0.11 fwmark 0x35 iif lo lookup 5353")
	}
	for _, own := range []bool{true, true, false} {
		had := marked()
		mended, err := tn.Ensure([]netip.Addr{c, b}, own)
		must(t, err)
		if marked() != own || (len(mended) > 0) == (had == own) {
			t.Errorf("own %t: mended %q:\n%s", own, mended, ns.Run("ip", "rule"))
		}
	}
	_, err = tn.Ensure([]netip.Addr{c, b}, true)
	must(t, err)
	must(t, tn.Remove())
	must(t, tn.Remove())
	testutil.Equal(t, "what is left", before, state(ns))
}

// TestHairpinStranger leaves another program's link alone.
func TestHairpinStranger(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ns.Bridge("neardns-turn0")
	tn := openHairpin(t, ns)
	if _, err := tn.Ensure([]netip.Addr{netip.MustParseAddr("10.96.0.10")}, false); err == nil {
		t.Error("a bridge is taken for the hairpin")
	}
	must(t, tn.Remove())
	ns.Link("neardns-turn0")
}

// TestHairpinRulesOfOthers: Ensure restores exactly neardns's rules, whatever has their priorities, and names rules that it must
// not remove.
func TestHairpinRulesOfOthers(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	tn := openHairpin(t, ns)
	addrs := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
	ensure := func() error {
		_, err := tn.Ensure(addrs, true)
		return err
	}
	must(t, ensure())
	wantKernelsProtocol(t, ns)
	want := state(ns)
	for name, damage := range map[string][][]string{
		"another table": {{"del", "pref", "97"}, {"add", "pref", "97", "to", "10.96.0.10", "lookup", "main"}},
		"another table before ours": {{"add", "pref", "97", "to", "10.96.0.10", "lookup", "main"}, {"del", "pref", "97", "lookup", "5353"},
			{"add", "pref", "97", "to", "10.96.0.10", "lookup", "5353", "proto", "kernel"}},
		"unreachable":                   {{"del", "pref", "97"}, {"add", "unreachable", "pref", "97", "to", "10.96.0.10"}},
		"reachable":                     {{"del", "pref", "96"}, {"add", "pref", "96", "iif", "neardns-turn1", "to", "10.96.0.10", "lookup", "main"}},
		"another mark":                  {{"del", "pref", "94"}, {"add", "pref", "94", "iif", "lo", "to", "10.96.0.10", "fwmark", "0x34", "lookup", "5353"}},
		"a protocol that networkd ends": {{"del", "pref", "97"}, {"add", "pref", "97", "to", "10.96.0.10", "lookup", "5353"}},
		"a part of the packets":         {{"del", "pref", "97"}, {"add", "pref", "97", "to", "10.96.0.10", "ipproto", "tcp", "lookup", "5353", "proto", "kernel"}},
	} {
		for _, args := range damage {
			ns.Run(append([]string{"ip", "rule"}, args...)...)
		}
		testutil.Check(t, ensure(), name)
		testutil.Equal(t, name+", repaired", want, state(ns))
	}
	for _, args := range [][]string{{"from", "10.0.0.0/8", "lookup", "main"}, {"to", "10.96.0.0/16", "lookup", "7"}} {
		ns.Run(append([]string{"ip", "rule", "add", "pref", "97"}, args...)...)
		testutil.WantError(t, ensure(), "routing rule 97", "a rule of another program for our packets")
		ns.Run(append([]string{"ip", "rule", "del", "pref", "97"}, args...)...)
		must(t, ensure())
	}
	// neardns's rules for an address that is no longer a cluster DNS address
	ns.Run("ip", "rule", "add", "pref", "97", "to", "10.96.0.9", "lookup", "5353", "proto", "kernel")
	ns.Run("ip", "rule", "add", "pref", "95", "iif", "lo", "to", "10.96.0.9", "lookup", "main", "proto", "kernel")
	ns.Run("ip", "rule", "add", "pref", "95", "iif", "lo", "to", "10.96.0.8", "lookup", "7") // not ours: another table
	must(t, ensure())
	if rules := ns.Run("ip", "rule"); strings.Contains(rules, "10.96.0.9") || !strings.Contains(rules, "10.96.0.8") {
		t.Errorf("the rules are\n%s", rules)
	}
}

// wantKernelsProtocol fails unless each of neardns's rules and routes has protocol kernel: systemd-networkd removes others when it
// starts.
func wantKernelsProtocol(t *testing.T, ns *testutil.NetNS) {
	t.Helper()
	found := 0
	for _, family := range []string{"-4", "-6"} {
		for _, listing := range []string{
			ns.Run("ip", "-d", family, "rule"), ns.Run("ip", "-d", family, "route", "show", "table", "5353"),
			ns.Run("ip", "-d", family, "route", "show", "table", "5354"), ns.Run("ip", "-d", family, "route", "show", "table", "main", "dev", "neardns-turn1"),
		} {
			for line := range strings.Lines(listing) {
				if found++; !strings.Contains(line, "proto kernel") {
					t.Errorf("networkd would take away: %s", line)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d lines were looked at", found)
	}
}

// TestHairpinLocalRuleMovedBack moves the kernel's rule for local addresses behind neardns's, as Cilium does: packets to an address
// that IPVS has on a link still reach it.
func TestHairpinLocalRuleMovedBack(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ns.Bridge("kube-ipvs0")
	ns.Bridge("pods")
	ns.AddAddr("pods", netip.MustParsePrefix("10.244.1.1/24"))
	ns.AddAddr("kube-ipvs0", netip.MustParsePrefix("10.96.0.10/32"))
	ns.Run("ip", "rule", "add", "pref", "100", "lookup", "local")
	ns.Run("ip", "rule", "del", "pref", "0")
	tn := openHairpin(t, ns)
	_, err := tn.Ensure([]netip.Addr{netip.MustParseAddr("10.96.0.10")}, true)
	must(t, err)
	ns.Sysctl("net.ipv4.ip_forward", "1")
	if to := ns.Run("ip", "route", "get", "10.96.0.10", "from", "10.244.1.7", "iif", "pods"); !strings.HasPrefix(to, "local ") {
		t.Errorf("a pod's packet to it goes %s", to)
	}
}
