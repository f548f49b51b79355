package nft_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// Other programs' tables stay byte for byte, also one named neardns in another family, and those of iptables.
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
	all := func() string { return ruleset(ns) + ns.Run("nft", "list", "table", "ip", "neardns") }
	before := all()
	check := func(when string) {
		t.Helper()
		now := all()
		for block := range strings.SplitSeq(before, "\ntable ") {
			name, _, _ := strings.Cut(block, " {")
			if !strings.Contains(now, strings.TrimSpace(block)) {
				t.Errorf("%s: table %s is not as it was", when, name)
			}
		}
	}
	backend := open(t, ns)
	if present, err := backend.Present(); err != nil || present {
		t.Errorf("another family's table counts as ours: %v, %v", present, err)
	}
	if err := backend.Verify(host()); err == nil {
		t.Error("another family's table counts as ours")
	}
	must(t, backend.Ensure(host()))
	check("ensure")
	for _, name := range []string{"pod-dual", "host-dual", "host-intercept", "host-none"} {
		must(t, backend.Apply(rulesets()[name]))
		check("apply " + name)
	}
	must(t, backend.Apply(host()))
	must(t, backend.Exempt([]netip.Addr{addr("10.244.0.1")}, nil))
	must(t, backend.Exempt(nil, []netip.Addr{addr("10.244.0.1")}))
	check("exempt")
	must(t, backend.Supported())
	check("supported")
	must(t, backend.Remove())
	check("remove")
	testutil.Equal(t, "after remove", before, all())
}

// The back end works in its descriptor's namespace, whichever thread calls it, and also after the descriptor is closed. Close closes all
// its files.
func TestNamespaceByDescriptor(t *testing.T) {
	testutil.RequireRoot(t)
	a, b := testutil.NewNS(t, "a"), testutil.NewNS(t, "b")
	fd, err := os.Open(a.Path())
	must(t, err)
	backend, err := nft.Open(int(fd.Fd()))
	must(t, err)
	must(t, fd.Close()) // the next file gets its number
	b.Do(func() { err = backend.Apply(brokenHost()) })
	if err == nil {
		t.Error("a broken table was taken")
	}
	b.Do(func() { err = backend.Apply(host()) })
	must(t, err)
	if ruleset(b) != "" || !strings.Contains(ruleset(a), "table inet neardns") {
		t.Error("rules in the wrong namespace")
	}
	must(t, backend.Close())

	var here *nft.Nftables
	b.Do(func() { here, err = nft.Open(-1) }) // the calling thread's
	must(t, err)
	if err := here.Apply(brokenHost()); err == nil { // the socket that comes after an error is of the same namespace
		t.Error("a broken table was taken")
	}
	must(t, here.Apply(steer.Pod{Redirects: []steer.Redirect{redirect4}}))
	if !strings.Contains(ruleset(b), "postrouting") || strings.Contains(ruleset(a), "daddr set 169.254.20.11") {
		t.Error("-1 is not the calling thread's namespace")
	}
	must(t, here.Close())

	if _, err := nft.Open(1 << 20); err == nil {
		t.Error("a descriptor that is not open was taken")
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = null.Close() }()
	if _, err := nft.Open(int(null.Fd())); err == nil {
		t.Error("a descriptor that is no namespace was taken")
	}
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	testutil.RequireRoot(t)
	ns, pod := testutil.NewNS(t, "fds"), rulesets()["pod-v4"]
	round := func() {
		backend, err := nft.Open(ns.FD())
		must(t, err)
		must(t, backend.Apply(pod))
		if err := backend.Apply(brokenHost()); err == nil { // after an error the back end opens a new socket
			t.Fatal("a table that the kernel cannot take was taken")
		}
		must(t, backend.Supported())
		must(t, backend.Apply(pod))
		must(t, backend.Close())
		_, _ = nft.Open(1 << 20)
	}
	round()
	before := testutil.OpenFiles(t)
	for range 4 {
		round()
	}
	if after := testutil.OpenFiles(t); after > before+3 { // the runtime's own
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// brokenHost is refused by the kernel: one key of a map with two values.
func brokenHost() steer.Host {
	h := host()
	h.Locals = append(slices.Clone(h.Locals), steer.Local{Address: redirect4.Steering, ClusterDNS: addr("10.96.0.99")})
	return h
}

// A transaction that the kernel refuses changes nothing at all.
func TestFailedApplyChangesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "refused")
	backend := open(t, ns)
	must(t, backend.Apply(steer.Host{Redirects: []steer.Redirect{redirect4b}, Uplinks: []string{"eth7"}}))
	before := ruleset(ns)
	if err := backend.Apply(brokenHost()); err == nil || !strings.HasPrefix(err.Error(), "apply rules: ") {
		t.Errorf("error %v, want one that begins with what was tried", err)
	}
	testutil.Equal(t, "the rules", before, ruleset(ns))
}
