package nft_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// A root process that may send marked packets cannot renew or withdraw a lease, nor hold or clear a client, without the agent's secret.
// Since Linux 5.17, any container of root on the host's network with CAP_NET_RAW can send them.
func TestLeaseDatagramsNeedTheSecret(t *testing.T) {
	testutil.RequireRoot(t)
	h := lasting()
	ns, backend := node(t, h)
	agent := openLease(t, ns)
	other := openLeaseOf(t, ns, steer.DrawSecret()) // as the agent's own, also with the mark and of root, but with another secret
	clients := []steer.Client{
		{Source: addr("10.244.0.2"), Protocol: steer.UDP, Address: redirect4.Steering},
		{Source: addr("10.244.0.2"), Protocol: steer.TCP, Address: redirect4.Steering},
		{Source: addr("fd00:244::2"), Protocol: steer.TCP, Address: redirect6.Steering},
	}
	for _, a := range []netip.Addr{redirect4.Steering, redirect6.Steering} {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			if err := other.Renew(a, p); !errors.Is(err, steer.ErrNoSwitch) {
				t.Errorf("renewed without the secret: %v", err)
			}
		}
		for _, port := range []int{17, 6} { // a program without any secret
			marked(t, ns, a, port, nil)
			marked(t, ns, a, port, make([]byte, 8))
		}
	}
	for _, c := range clients {
		if err := other.Hold(c, 0); !errors.Is(err, steer.ErrNoSwitch) {
			t.Errorf("held without the secret: %v", err)
		}
	}
	testutil.Equal(t, "leases without the secret", nil, holding(t, backend))
	testutil.Equal(t, "suspects without the secret", nil, suspects(t, backend))

	must(t, agent.Renew(redirect4.Steering, steer.TCP))
	must(t, agent.Renew(redirect6.Steering, steer.UDP))
	for _, c := range clients {
		must(t, agent.Hold(c, 0))
	}
	held := holding(t, backend)
	_ = other.Withdraw(redirect4.Steering, steer.TCP)
	_ = other.Withdraw(redirect6.Steering, steer.UDP)
	for _, port := range []int{117, 106} {
		marked(t, ns, redirect4.Steering, port, nil)
	}
	for _, c := range clients {
		_ = other.Release(c)
	}
	if got := holding(t, backend); !slices.Equal(got, held) || len(got) != 2 {
		t.Errorf("leases %v after another's withdrawals, want %v", got, held)
	}
	heldOf := func() (count int) {
		list, err := backend.Suspects()
		must(t, err)
		for _, s := range list {
			if s.Held > 0 {
				count++
			}
		}
		return count
	}
	testutil.Equal(t, "held after another's release", len(clients), heldOf())
	for _, c := range clients {
		must(t, agent.Release(c))
	}
	testutil.Equal(t, "held after the release", 0, heldOf())
}

// marked sends a lease datagram with neardns's mark and any payload. An older agent sent an empty one.
func marked(t *testing.T, ns *testutil.NetNS, to netip.Addr, port int, payload []byte) {
	t.Helper()
	ns.Do(func() {
		domain, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: to.As16()})
		if to.Is4() {
			domain, at = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: to.As4()}
		}
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer func() { _ = unix.Close(fd) }()
		must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, steer.Mark))
		_ = unix.Sendto(fd, payload, 0, at)
	})
}

// Each agent process has a secret of its own, and the previous one is invalid as soon as the new agent has written its rules. Leases
// and records survive the change.
func TestSecretIsOfThisStart(t *testing.T) {
	testutil.RequireRoot(t)
	h := lasting()
	ns, backend := node(t, h)
	before := openLease(t, ns)
	must(t, before.Renew(redirect4.Steering, steer.UDP))
	after := openLeaseOf(t, ns, steer.DrawSecret())
	if err := after.Renew(redirect4.Steering, steer.TCP); !errors.Is(err, steer.ErrNoSwitch) {
		t.Errorf("renewed before the table knew the secret: %v", err)
	}
	h.Secret = after.Secret()
	drift, err := backend.Repair(h)
	must(t, err)
	if text := strings.Join(drift, " "); len(drift) != 2 || strings.Contains(text, "@th") || strings.Contains(text, "sequence") {
		t.Errorf("the drift tells the secret, or more than it: %v", drift)
	}
	testutil.Equal(t, "leases after the change", []string{"udp 169.254.20.11"}, holding(t, backend))
	must(t, after.Renew(redirect4.Steering, steer.TCP))
	if err := before.Renew(redirect6.Steering, steer.TCP); !errors.Is(err, steer.ErrNoSwitch) {
		t.Errorf("the secret of the start before is still good: %v", err)
	}
	if before.Secret() == after.Secret() || after.Secret() == 0 {
		t.Error("two starts have one secret")
	}
}

// If the plugin or the watch makes the table, it has no secret, and no program can renew a lease in it. The agent then writes its secret,
// which stays when another program verifies or completes the table.
func TestSecretIsTheAgentsAlone(t *testing.T) {
	testutil.RequireRoot(t)
	h := lasting()
	plugin := h
	plugin.Secret = 0
	ns, backend := linked(t)
	must(t, backend.Ensure(plugin))
	lease := openLease(t, ns)
	for _, l := range []*steer.Lease{lease, openLeaseOf(t, ns, 0)} {
		if err := l.Renew(redirect4.Steering, steer.UDP); !errors.Is(err, steer.ErrNoSwitch) {
			t.Errorf("a lease in a table without a secret: %v", err)
		}
	}
	must(t, backend.Apply(h))
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	must(t, backend.Ensure(plugin))
	must(t, backend.Verify(plugin)) // as the doctor does, which does not know the secret
	for _, chain := range []string{"output", "prerouting"} {
		ns.Run("nft", "flush", "chain", "inet", "neardns", chain)
	}
	must(t, backend.Ensure(plugin)) // as an ADD does next to a damaged table
	must(t, lease.Renew(redirect6.Steering, steer.UDP))
	must(t, backend.Verify(h))
	if got := holding(t, backend); len(got) != 2 {
		t.Errorf("leases %v", got)
	}
}

// A table of the form before secrets is updated without losing a lease.
func TestSecretComesToAnOlderTable(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := linked(t)
	ns.RunInput(testutil.ReadFile(t, "testdata/older/host-dual.nft"), "nft", "-f", "-")
	ns.Run("nft", "add", "element", "inet", "neardns", "lease_udp4", "{ 169.254.20.11 timeout 1m }")
	h := lasting()
	h.Uplinks = append(h.Uplinks, "eth1.5")
	lease := openLease(t, ns)
	must(t, backend.Apply(h))
	must(t, backend.Verify(h))
	must(t, lease.Renew(redirect6.Steering, steer.TCP))
	if got := holding(t, backend); !slices.Contains(got, "udp 169.254.20.11") || !slices.Contains(got, "tcp fd00:90de:d95::b") {
		t.Errorf("leases %v", got)
	}
}
