package link

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

const name = "neardns0"

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

var both = addrs("169.254.20.10", "169.254.20.11", "fd00:90de:d95::a", "fd00:90de:d95::b")

func host(t *testing.T) (*testutil.NetNS, Config) {
	t.Helper()
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "host")
	return ns, Config{Name: name, Addresses: both, NetNS: ns.FD()}
}

// shownAddresses lists the link's addresses as ip(8) prints them, without the index line.
func shownAddresses(ns *testutil.NetNS) []string {
	var out []string
	for line := range strings.Lines(ns.Run("ip", "-o", "addr", "show", "dev", name)) {
		fields := strings.Fields(line)
		out = append(out, strings.Join(fields[3:], " "))
	}
	slices.Sort(out)
	return out
}

var wantBoth = []string{
	`169.254.20.10/32 scope link neardns0\ valid_lft forever preferred_lft forever`,
	`169.254.20.11/32 scope link neardns0\ valid_lft forever preferred_lft forever`,
	`fd00:90de:d95::a/128 scope global nodad deprecated noprefixroute \ valid_lft forever preferred_lft 0sec`,
	`fd00:90de:d95::b/128 scope global nodad deprecated noprefixroute \ valid_lft forever preferred_lft 0sec`,
}

func mustEnsure(t *testing.T, cfg Config) {
	t.Helper()
	_, err := Ensure(cfg)
	testutil.Must(t, err)
}

// assertBoth checks the whole: the addresses and their properties, the link's flags, and that nothing is left to do.
func assertBoth(t *testing.T, ns *testutil.NetNS, cfg Config) {
	t.Helper()
	testutil.Equal(t, "addresses", wantBoth, shownAddresses(ns))
	show := ns.Run("ip", "link", "show", "dev", name)
	if !strings.Contains(show, ",UP") || strings.Contains(show, "MULTICAST") {
		t.Errorf("link must be up and without multicast: %s", show)
	}
	again, err := Ensure(cfg)
	if err != nil || again != "" {
		t.Errorf("a second Ensure did %q, %v; want nothing", again, err)
	}
}

// The link is a dummy wherever the kernel can make one.
func TestEnsureMakesLink(t *testing.T) {
	ns, cfg := host(t)
	want := kindDummy
	if _, err := ns.TryRun("", "ip", "link", "add", "probe", "type", "dummy"); err != nil {
		want = kindBridge
	}
	done, err := Ensure(cfg)
	testutil.Must(t, err)
	const added = ", added 169.254.20.10, added 169.254.20.11, added fd00:90de:d95::a, added fd00:90de:d95::b"
	if kind, _, _ := strings.Cut(done, ", "); kind != "created "+want || !strings.HasSuffix(done, added) {
		t.Errorf("changes %q, want a %s", done, want)
	}
	assertBoth(t, ns, cfg)
	if shown := ns.Run("ip", "-d", "link", "show", name); !strings.Contains(shown, " "+want+" ") {
		t.Errorf("want a %s:\n%s", want, shown)
	}
}

func TestEnsureRepairs(t *testing.T) {
	for _, c := range []struct {
		name  string
		wreck func(*testutil.NetNS)
		want  string
	}{
		{"link down", func(ns *testutil.NetNS) { ns.Down(name) }, "set up"},
		{"link deleted", func(ns *testutil.NetNS) { ns.DelLink(name) }, "created"},
		{"multicast on", func(ns *testutil.NetNS) { ns.Run("ip", "link", "set", name, "multicast", "on") }, "set multicast off"},
		{"IPv4 address missing", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "del", "169.254.20.11/32", "dev", name) }, "added 169.254.20.11"},
		{"IPv6 address missing", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "del", "fd00:90de:d95::b/128", "dev", name) }, "added fd00:90de:d95::b"},
		{"flushed", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "flush", "dev", name) }, "added 169.254.20.10, added 169.254.20.11"},
		{"foreign IPv4 address", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "add", "192.0.2.1/24", "dev", name) }, "removed 192.0.2.1/24"},
		{"foreign IPv6 address", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "add", "2001:db8::1/64", "dev", name) }, "removed 2001:db8::1/64"},
		{"wrong scope", func(ns *testutil.NetNS) {
			ns.Run("ip", "addr", "del", "169.254.20.11/32", "dev", name)
			ns.Run("ip", "addr", "add", "169.254.20.11/32", "dev", name)
		}, "added 169.254.20.11"},
		{"wrong prefix length", func(ns *testutil.NetNS) {
			ns.Run("ip", "addr", "del", "169.254.20.11/32", "dev", name)
			ns.Run("ip", "addr", "add", "169.254.20.11/24", "scope", "link", "dev", name)
		}, "added 169.254.20.11"},
		{"no longer deprecated", func(ns *testutil.NetNS) {
			ns.Run("ip", "addr", "change", "fd00:90de:d95::b/128", "dev", name, "preferred_lft", "forever", "valid_lft", "forever")
		}, "added fd00:90de:d95::b"},
		{"IPv6 turned off on the link", func(ns *testutil.NetNS) { ns.Sysctl("net.ipv6.conf."+name+".disable_ipv6", "1") }, "disable_ipv6 = 0, added fd00:90de:d95::a"},
		{"link-local address generated", func(ns *testutil.NetNS) {
			ns.Run("ip", "link", "set", name, "addrgenmode", "eui64")
			ns.Down(name)
			ns.Up(name)
		}, "set addrgenmode none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, cfg := host(t)
			mustEnsure(t, cfg)
			c.wreck(ns)
			done, err := Ensure(cfg)
			testutil.Must(t, err)
			if !strings.Contains(done, c.want) {
				t.Errorf("changes %q, want %q", done, c.want)
			}
			assertBoth(t, ns, cfg)
		})
	}
}

// An address that was taken out of the configuration goes, and one family alone works too.
func TestEnsureShrinks(t *testing.T) {
	ns, cfg := host(t)
	mustEnsure(t, cfg)
	cfg.Addresses = addrs("169.254.20.11")
	done, err := Ensure(cfg)
	if err != nil || strings.Count(done, "removed ") != 3 {
		t.Fatalf("changes %q, %v; want three addresses removed", done, err)
	}
	testutil.Equal(t, "addresses", wantBoth[1:2], shownAddresses(ns))
}

// New links start with IPv6 off on hosts that set the default so; ours still gets its addresses.
func TestEnsureWhereIPv6StartsOff(t *testing.T) {
	ns, cfg := host(t)
	ns.Sysctl("net.ipv6.conf.default.disable_ipv6", "1")
	mustEnsure(t, cfg)
	assertBoth(t, ns, cfg)
}

func TestEnsureRefuses(t *testing.T) {
	other := func(ns *testutil.NetNS, prefixes ...string) {
		testutil.VethPair(t, ns, "other0", ns, "other1")
		ns.Up("other0")
		ns.Up("other1")
		for _, p := range prefixes {
			ns.Run("ip", "addr", "add", p, "dev", "other0")
		}
	}
	for _, c := range []struct {
		name    string
		before  func(*testutil.NetNS)
		address string // the one refused; the others must be there
		want    string
	}{
		{"IPv4 on another link", func(ns *testutil.NetNS) { other(ns, "169.254.20.10/32") }, "169.254.20.10", "is already on link other0"},
		{"IPv6 on another link", func(ns *testutil.NetNS) { other(ns, "fd00:90de:d95::b/128") }, "fd00:90de:d95::b", "is already on link other0"},
		{"on lo", func(ns *testutil.NetNS) { ns.Run("ip", "addr", "add", "169.254.20.11/32", "dev", "lo") }, "169.254.20.11", "is already on link lo"},
		{"routed by a gateway", func(ns *testutil.NetNS) {
			other(ns, "192.0.2.1/24")
			ns.Run("ip", "route", "add", "169.254.20.11/32", "via", "192.0.2.9")
		}, "169.254.20.11", "already routed elsewhere (169.254.20.11/32 via 192.0.2.9 dev other0)"},
		{"IPv6 routed", func(ns *testutil.NetNS) {
			other(ns)
			ns.Run("ip", "-6", "route", "add", "fd00:90de:d95::b/128", "dev", "other0")
		}, "fd00:90de:d95::b", "already routed elsewhere (fd00:90de:d95::b/128 dev other0)"},
		{"local by AnyIP", func(ns *testutil.NetNS) { ns.Run("ip", "route", "add", "local", "169.254.20.11/32", "dev", "lo") },
			"169.254.20.11", "already routed elsewhere (local 169.254.20.11/32 dev lo"},
		{"in another table by a rule", func(ns *testutil.NetNS) {
			other(ns, "192.0.2.1/24")
			ns.Run("ip", "route", "add", "169.254.20.10/32", "via", "192.0.2.9", "table", "77")
			ns.Run("ip", "rule", "add", "lookup", "77")
		}, "169.254.20.10", "dev other0 table 77"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, cfg := host(t)
			c.before(ns)
			_, err := Ensure(cfg)
			var conflict *ConflictError
			if !errors.As(err, &conflict) || conflict.Address != netip.MustParseAddr(c.address) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want a conflict of %s with %q", err, c.address, c.want)
			}
			got := strings.Join(shownAddresses(ns), "\n")
			for _, a := range both {
				if strings.Contains(got, a.String()+"/") == (a == conflict.Address) {
					t.Errorf("%s: wrongly there or missing:\n%s", a, got)
				}
			}
		})
	}
}

// Routes that lead to no other host are no conflict: the default route, the on-link route that distributions put on the first
// interface, a range that is closed on purpose.
func TestEnsureTakesUnusedAddresses(t *testing.T) {
	ns, cfg := host(t)
	testutil.VethPair(t, ns, "eth0", ns, "eth0-peer")
	ns.Up("eth0")
	ns.Up("eth0-peer")
	ns.Run("ip", "addr", "add", "192.0.2.1/24", "dev", "eth0")
	ns.Run("ip", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad")
	ns.Run("ip", "route", "add", "default", "via", "192.0.2.9")
	ns.Run("ip", "-6", "route", "add", "default", "via", "2001:db8::9")
	ns.Run("ip", "route", "add", "169.254.0.0/16", "dev", "eth0", "metric", "1000")
	ns.Run("ip", "-6", "route", "add", "unreachable", "fd00::/8")
	mustEnsure(t, cfg)
	assertBoth(t, ns, cfg)
}

func TestForeignLinkOfOurName(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*testutil.NetNS)
		want string
	}{
		{"veth", func(ns *testutil.NetNS) { testutil.VethPair(t, ns, name, ns, "peer") }, "is a veth, so it is another program's"},
		{"bridge with a port", func(ns *testutil.NetNS) {
			testutil.VethPair(t, ns, "port0", ns, "port1")
			ns.Bridge(name, "port0")
		}, "is a bridge with a port (port0)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, cfg := host(t)
			c.make(ns)
			show := []string{"sh", "-c", "ip link show dev " + name + "; ip -4 addr show dev " + name}
			before := ns.Run(show...)
			_, err := Ensure(cfg)
			testutil.WantError(t, err, c.want, "Ensure")
			testutil.WantError(t, Remove(cfg), c.want, "Remove")
			testutil.Equal(t, "the foreign link", before, ns.Run(show...))
		})
	}
}

func TestRemove(t *testing.T) {
	ns, cfg := host(t)
	before := ns.Run("ip", "addr")
	testutil.Check(t, Remove(cfg), "no link")
	mustEnsure(t, cfg)
	for range 2 {
		testutil.Must(t, Remove(cfg))
	}
	testutil.Equal(t, "residue", before, ns.Run("ip", "addr"))
}

// On a node whose pod routes lead to veths without addresses (Calico, the AWS VPC CNI), none of our addresses may become the source of the
// node's packets to pods, whichever link came first.
func TestNeverASource(t *testing.T) {
	for _, order := range []string{"ours first", "ours last"} {
		t.Run(order, func(t *testing.T) {
			ns, cfg := host(t)
			pod, out := testutil.NewNS(t, "pod"), testutil.NewNS(t, "out")
			if order == "ours first" {
				mustEnsure(t, cfg)
			}
			testutil.VethPair(t, ns, "eth0", out, "eth0")
			testutil.VethPair(t, ns, "cali1", pod, "eth0")
			for _, l := range []string{"eth0", "cali1"} {
				ns.NoDAD(l)
				ns.Up(l)
			}
			out.Up("eth0")
			pod.Up("eth0")
			ns.Run("ip", "addr", "add", "192.0.2.5/24", "dev", "eth0")
			ns.Run("ip", "addr", "add", "2001:db8::5/64", "dev", "eth0", "nodad")
			ns.Run("ip", "route", "add", "10.244.0.5/32", "dev", "cali1", "scope", "link")
			ns.Run("ip", "-6", "route", "add", "fd00:10:244::5/128", "dev", "cali1")
			if order == "ours last" {
				mustEnsure(t, cfg)
			}
			for dst, src := range map[string]string{"10.244.0.5": "192.0.2.5", "fd00:10:244::5": "2001:db8::5"} {
				if got := ns.Run("ip", "route", "get", dst); !strings.Contains(got, " src "+src+" ") {
					t.Errorf("route get %s: %q, want src %s", dst, strings.TrimSpace(got), src)
				}
			}
			// Without any other address of the family there is no good source; ours must not be the bad one in IPv4. In
			// IPv6 a deprecated address is better to the kernel than none, and such a node speaks no IPv6 to its pods anyway.
			ns.Run("ip", "addr", "del", "192.0.2.5/24", "dev", "eth0")
			if got := ns.Run("ip", "route", "get", "10.244.0.5"); strings.Contains(got, "src 169.254.20.") {
				t.Errorf("route get 10.244.0.5 on a node without addresses: %q", strings.TrimSpace(got))
			}
		})
	}
}

func TestWatch(t *testing.T) {
	ns, cfg := host(t)
	for what, change := range map[string]func(){
		"made":         func() { mustEnsure(t, cfg) },
		"IPv4 address": func() { ns.Run("ip", "addr", "del", "169.254.20.11/32", "dev", name) },
		"IPv6 address": func() { ns.Run("ip", "addr", "del", "fd00:90de:d95::b/128", "dev", name) },
		"down":         func() { ns.Run("ip", "link", "set", name, "down") },
		"deleted":      func() { ns.Run("ip", "link", "del", name) },
	} {
		if what == "made" {
			_, _ = ns.TryRun("", "ip", "link", "del", name)
		} else {
			testutil.Eventually(t, func() error { // the agent repairs until nothing is left to do
				done, err := Ensure(cfg)
				if err == nil && done != "" {
					err = errors.New("repaired: " + done)
				}
				return err
			})
		}
		// A watch of its own for each change: it ticks for what comes after it.
		ctx, cancel := context.WithCancel(t.Context())
		ticks, err := Watch(ctx, cfg)
		testutil.Must(t, err)
		change()
		testutil.Receive(t, ticks)
		cancel()
		for range ticks { //nolint:revive // until it is closed
		}
	}
}
