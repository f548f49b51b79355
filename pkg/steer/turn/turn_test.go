package turn_test

import (
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/steer/turn"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func state(ns *testutil.NetNS) string {
	var out strings.Builder
	for _, args := range [][]string{{"rule"}, {"-6", "rule"}, {"route", "show", "table", "all"}, {"-6", "route", "show", "table", "all"}, {"-br", "link"}} {
		out.WriteString(ns.Run(append([]string{"ip"}, args...)...))
	}
	return out.String()
}

// TestTurn makes, keeps, changes and removes it, and wants nothing else touched.
func TestTurn(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ns.Run("ip", "rule", "add", "pref", "97", "to", "192.0.2.1", "lookup", "7") // a stranger with our number
	ns.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	before := state(ns)
	tn, err := turn.Open(ns.FD())
	must(t, err)
	defer tn.Close()
	a, b, c := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a"), netip.MustParseAddr("10.96.0.11")
	ensure := func(want string, addrs ...netip.Addr) {
		t.Helper()
		mended, err := tn.Ensure(addrs, false)
		must(t, err)
		if got := strings.Join(mended, ", "); got != want {
			t.Errorf("mended %q, want %q", got, want)
		}
	}
	const all = "link neardns-turn0, settings of neardns-turn0, routes of neardns-turn0, routing rules of neardns-turn0"
	mended, err := tn.Ensure([]netip.Addr{a, b}, false)
	must(t, err)
	if got := strings.Join(mended, ", "); !strings.HasPrefix(got, all) {
		t.Errorf("mended %q at first", got)
	}
	ensure("", a, b)
	if got := strings.TrimSpace(ns.Run("cat", "/proc/sys/net/ipv4/conf/neardns-turn0/rp_filter")); got != "2" {
		t.Errorf("rp_filter of the first end is %s under a strict filter, want 2", got)
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
	// What the node's own processes are given back goes there, too, by its mark.
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
	if after := state(ns); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
}

// TestStranger leaves another program's link alone.
func TestStranger(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	ns.Bridge("neardns-turn0")
	tn, err := turn.Open(ns.FD())
	must(t, err)
	defer tn.Close()
	if _, err := tn.Ensure([]netip.Addr{netip.MustParseAddr("10.96.0.10")}, false); err == nil {
		t.Error("a bridge is taken for the turn")
	}
	must(t, tn.Remove())
	ns.Link("neardns-turn0")
}
