package procnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// As /proc/net prints them on a little-endian machine.
func TestParseConflict(t *testing.T) {
	const (
		udp4 = "  12: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0"
		any4 = "  13: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0"
		any6 = "  14: 00000000000000000000000000000000:0035 " +
			"00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0"
		loop6 = "  15: 00000000000000000000000001000000:0035 " +
			"00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0 100 0 0 10 0"
		mapped = "  16: 0000000000000000FFFF00000100007F:0035 " +
			"00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4715 1 0 100 0 0 10 0"
		accepted = "  17: 0100007F:0035 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4716 1 0 100 0 0 10 0"
	)
	at := netip.MustParseAddrPort
	for _, tc := range []struct {
		name, line, protocol string
		ap                   netip.AddrPort
		want                 string // the socket's address; "": it does not conflict
	}{
		{"same", udp4, "udp", at("127.0.0.1:53"), "127.0.0.1"},
		{"other port", udp4, "udp", at("127.0.0.1:54"), ""},
		{"other address", udp4, "udp", at("127.0.0.2:53"), ""},
		{"wildcard", any4, "udp", at("169.254.20.10:53"), "0.0.0.0"},
		{"wildcard 6", any6, "tcp", at("169.254.20.10:53"), "::"},
		{"wildcard, for IPv6", any4, "udp", at("[fd00:90de:d95::a]:53"), ""},
		{"same 6", loop6, "tcp", at("[::1]:53"), "::1"},
		{"mapped", mapped, "udp", at("127.0.0.1:53"), "127.0.0.1"},
		{"a connection is no listener", accepted, "tcp", at("127.0.0.1:53"), ""},
		{"junk", "sl local_address", "udp", at("127.0.0.1:53"), ""},
		{"more junk", strings.Repeat("x ", 12), "udp", at("127.0.0.1:53"), ""},
	} {
		local, ok := parseConflict(tc.line, tc.protocol, tc.ap)
		if ok != (tc.want != "") || ok && local.String() != tc.want {
			t.Errorf("%s: %s %v, want %q", tc.name, local, ok, tc.want)
		}
	}
}

func FuzzConflicting(f *testing.F) {
	f.Add("  12: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0")
	f.Fuzz(func(_ *testing.T, line string) {
		parseConflict(line, "tcp", netip.MustParseAddrPort("127.0.0.1:53"))
	})
}

// elsewhere is an environment variable with an address. If it is set, this program moves its first thread into a new netns, and prints
// whether a socket has the address.
const elsewhere = "NEARDNS_TEST_FIRST_THREAD_ELSEWHERE"

func init() { // on the first thread
	text := os.Getenv(elsewhere)
	if text == "" {
		return
	}
	at, err := netip.ParseAddrPort(text)
	runtime.LockOSThread() // so that Go makes no thread from this one: it would be in the new netns, too
	if err == nil {
		err = unix.Unshare(unix.CLONE_NEWNET)
	}
	done := make(chan struct{})
	go func() {
		exact := false
		if err == nil {
			exact, _, err = Bound("udp", at)
		}
		fmt.Println(exact, err)
		close(done)
	}()
	<-done
	os.Exit(0)
}

// Go may run a goroutine that enters a pod's netns on the first thread, whose netns /proc/self/net and /proc/net show.
func TestFirstThreadElsewhere(t *testing.T) {
	testutil.RequireRoot(t)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testutil.Must(t, err)
	defer conn.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), elsewhere+"="+conn.LocalAddr().String())
	out, err := cmd.CombinedOutput()
	testutil.Must(t, err)
	if got := strings.TrimSpace(string(out)); got != "true <nil>" {
		t.Errorf("the socket is not seen: %s", got)
	}
}
