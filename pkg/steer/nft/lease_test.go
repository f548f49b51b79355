package nft_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// linked is a namespace with the addresses on a link, as the agent keeps them.
func linked(t testing.TB) (*testutil.NetNS, *nft.Nftables) {
	t.Helper()
	ns := testutil.NewNS(t, "node")
	ns.Bridge("neardns0")
	for _, a := range []netip.Addr{redirect4.Steering, local4.Address, redirect6.Steering, local6.Address} {
		ns.AddAddr("neardns0", testutil.Host(a))
	}
	return ns, open(t, ns)
}

// node is linked, with a host table.
func node(t testing.TB, h steer.Host) (*testutil.NetNS, *nft.Nftables) {
	t.Helper()
	ns, backend := linked(t)
	must(t, backend.Apply(h))
	return ns, backend
}

func openLease(t testing.TB, ns *testutil.NetNS) *steer.Lease {
	t.Helper()
	return openLeaseOf(t, ns, testSecret)
}

func openLeaseOf(t testing.TB, ns *testutil.NetNS, secret steer.Secret) (lease *steer.Lease) {
	t.Helper()
	var err error
	ns.Do(func() { lease, err = steer.OpenLease(secret) })
	must(t, err)
	t.Cleanup(func() { _ = lease.Close() })
	return lease
}

// holding lists the leases in force, sorted, as text.
func holding(t testing.TB, backend *nft.Nftables) []string {
	t.Helper()
	leases, err := backend.Leases()
	must(t, err)
	var out []string
	for _, l := range leases {
		out = append(out, l.Protocol.String()+" "+l.Address.String())
	}
	slices.Sort(out)
	return out
}

func TestLeaseRenewAndWithdraw(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := node(t, lasting())
	lease := openLease(t, ns)
	want := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		testutil.Equal(t, "leases", want, holding(t, backend))
	}
	before := generation(t, ns)
	want()
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	want("udp 169.254.20.11")
	must(t, lease.Renew(redirect4.Steering, steer.TCP))
	must(t, lease.Renew(redirect6.Steering, steer.TCP))
	must(t, lease.Renew(local4.Address, steer.UDP))
	must(t, lease.Renew(local6.Address, steer.UDP))
	want("udp 169.254.20.11", "tcp 169.254.20.11", "tcp fd00:90de:d95::b", "udp 169.254.20.10", "udp fd00:90de:d95::a")
	must(t, lease.Withdraw(redirect4.Steering, steer.UDP))
	want("tcp 169.254.20.11", "tcp fd00:90de:d95::b", "udp 169.254.20.10", "udp fd00:90de:d95::a")
	must(t, lease.Withdraw(redirect4.Steering, steer.UDP)) // there is none any more
	must(t, lease.Withdraw(redirect6.Steering, steer.TCP))
	must(t, lease.Withdraw(local6.Address, steer.UDP))
	want("tcp 169.254.20.11", "udp 169.254.20.10")
	drain := ns.Run("nft", "list", "set", "inet", "neardns", "drain6")
	if !strings.Contains(drain, "fd00:90de:d95::b") {
		t.Errorf("no drain after a TCP lease was withdrawn:\n%s", drain)
	}
	if generation(t, ns) != before {
		t.Error("leases cost transactions")
	}
	counters, err := backend.Counters()
	must(t, err)
	if got := counters[steer.CounterLeaseRenewal].Packets; got != 9 {
		t.Errorf("%d lease datagrams counted, want 9", got)
	}
	must(t, backend.Verify(lasting()))

	// Many goroutines may use one Lease.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				testutil.Check(t, errors.Join(lease.Renew(redirect4.Steering, steer.UDP), lease.Renew(redirect6.Steering, steer.UDP)))
			}
		})
	}
	group.Wait()
	want("tcp 169.254.20.11", "udp 169.254.20.10", "udp 169.254.20.11", "udp fd00:90de:d95::b")
	must(t, lease.Close())
	must(t, lease.Close())
	testutil.WantError(t, lease.Renew(redirect4.Steering, steer.UDP), "closed")
}

// A renewal restarts the lifetime: a lease that was granted first and is renewed ends last, at most a lifetime later.
func TestRenewalExtendsALease(t *testing.T) {
	testutil.RequireRoot(t)
	h := lasting()
	ns, backend := node(t, h)
	lease := openLease(t, ns)
	for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
		must(t, lease.Renew(redirect4.Steering, p))
		must(t, lease.Renew(local4.Address, p))
		testutil.Eventually(t, func() error {
			must(t, lease.Renew(redirect4.Steering, p))
			leases, err := backend.Leases()
			must(t, err)
			left := map[netip.Addr]time.Duration{}
			for _, l := range leases {
				if l.Expires <= 0 || l.Expires > h.Lifetime {
					t.Fatalf("%v left of %v", l.Expires, h.Lifetime)
				}
				if l.Protocol == p {
					left[l.Address] = l.Expires
				}
			}
			return testutil.ErrorIf(left[redirect4.Steering] <= left[local4.Address], "%s: left %v", p, left)
		})
	}
}

// Without the rule that drops lease datagrams, Renew returns ErrNoSwitch.
func TestLeaseWithoutSwitch(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := node(t, lasting())
	lease := openLease(t, ns)
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	must(t, backend.Remove())
	for _, a := range []netip.Addr{redirect4.Steering, local6.Address} {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			if err := lease.Renew(a, p); !errors.Is(err, steer.ErrNoSwitch) {
				t.Errorf("renew %s %s without a switch: %v", p, a, err)
			}
			if err := lease.Withdraw(a, p); !errors.Is(err, steer.ErrNoSwitch) {
				t.Errorf("withdraw %s %s without a switch: %v", p, a, err)
			}
		}
	}
	must(t, backend.Apply(lasting()))
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	if got := holding(t, backend); len(got) != 1 {
		t.Errorf("leases %v", got)
	}
	// An address that the switch does not know has no lease.
	if err := lease.Renew(redirect4b.Steering, steer.UDP); err == nil {
		t.Error("a lease for an address that is not ours")
	}
	if got := holding(t, backend); len(got) != 1 {
		t.Errorf("leases %v", got)
	}
}

// Another program's policy DROP at the hook output does not prevent renewals.
func TestLeaseBesideForeignOutput(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := node(t, lasting())
	ns.RunInput("table inet firewall { chain out { type filter hook output priority filter; policy drop; }; }", "nft", "-f", "-")
	lease := openLease(t, ns)
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	must(t, lease.Renew(redirect6.Steering, steer.UDP))
	if got := holding(t, backend); len(got) != 2 {
		t.Errorf("leases %v under a foreign OUTPUT policy of DROP", got)
	}
}
