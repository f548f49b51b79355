package backends

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func ports(text ...string) (out []netip.AddrPort) {
	for _, t := range text {
		out = append(out, netip.MustParseAddrPort(t))
	}
	return out
}

// TestSeen: the servers are the sockets' remote addresses of the last seconds, never a Service, a loopback or an unspecified address.
func TestSeen(t *testing.T) {
	services := ports("10.96.0.10:53", "[fd00:96::a]:53")
	now := time.Unix(1_000_000, 0)
	var m Follower
	for _, step := range []struct {
		after       time.Duration
		found, want []netip.AddrPort
	}{
		{0, services, nil},
		{0, ports("10.244.2.3:53", "10.96.0.10:53", "127.0.0.1:53", "0.0.0.0:0", "[fd00:244::3]:53"), ports("10.244.2.3:53", "[fd00:244::3]:53")},
		{3 * time.Second, ports("10.244.1.9:5353"), ports("10.244.1.9:5353", "10.244.2.3:53", "[fd00:244::3]:53")},
		{3 * time.Second, nil, ports("10.244.1.9:5353")},
		{3 * time.Second, nil, nil},
	} {
		now = now.Add(step.after)
		if got := m.note(services, step.found, now); !slices.Equal(got, step.want) {
			t.Errorf("%v, want %v", got, step.want)
		}
	}
}

// TestLead: a socket that no datapath translates leads to its own address, and each family is read.
func TestLead(t *testing.T) {
	testutil.RequireRoot(t) // it reads the sockets of the network namespace, in which other programs open and close some
	services := ports("127.0.0.1:53")
	if c, err := net.Dial("udp", "[::1]:53"); err == nil {
		c.Close()
		services = append(services, ports("[::1]:53")...)
	}
	var want []netip.AddrPort
	for _, s := range services {
		want = append(want, s, s, s)
	}
	// While other programs close sockets, the kernel's list may omit a socket or have it twice, so try again.
	testutil.Eventually(t, func() error {
		got, err := remotes(services, 3)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%v, want %v", got, want)
		}
		return err
	})
}

// TestSockets reads what a kernel wrote (Linux 6.18, x86).
func TestSockets(t *testing.T) {
	const text = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  405: 0100007F:9D31 0302F40A:0035 01 00000000:00000000 00:00000000 00000000     0        0 133706 2 0000000000000000 0
  406: 0100007F:9D32 short:0035 01 00000000:00000000 00:00000000 00000000     0        0 133707 2 0000000000000000 0
 2044: 00000000000000000000000001000000:9D33 000000FD00004402000000000300000A:14E9 01 00000000:00000000 00:00000000 00000000     0        0 133708 2 0000000000000000 0
`
	want := []socket{{netip.MustParseAddrPort("10.244.2.3:53"), 133706}, {netip.MustParseAddrPort("[fd00:0:244::a00:3]:5353"), 133708}}
	if got := sockets(text); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func FuzzSockets(f *testing.F) {
	f.Add("  405: 0100007F:9D31 0302F40A:0035 01 00000000:00000000 00:00000000 00000000     0        0 133706 2 0000000000000000 0\n")
	f.Add(" 1: x 00000000000000000000000001000000:9D33 01 a b c d e 7\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range sockets(text) {
			if !s.remote.Addr().IsValid() {
				t.Errorf("%v of %q", s, text)
			}
		}
	})
}
