package dns

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/coredns/admit"
	"github.com/neardns/neardns/agent/internal/coredns/complete"
	"github.com/neardns/neardns/agent/internal/coredns/metrics"
	"github.com/neardns/neardns/pkg/testutil"
)

// As /proc/net prints them on a little-endian machine.
func TestConflicting(t *testing.T) {
	const (
		udp4     = "  12: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0"
		any4     = "  13: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0"
		any6     = "  14: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0"
		loop6    = "  15: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0 100 0 0 10 0"
		mapped   = "  16: 0000000000000000FFFF00000100007F:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4715 1 0 100 0 0 10 0"
		accepted = "  17: 0100007F:0035 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4716 1 0 100 0 0 10 0"
	)
	at := netip.MustParseAddrPort
	for _, tc := range []struct {
		name, line, protocol string
		ap                   netip.AddrPort
		inode                string
	}{
		{"same", udp4, "udp", at("127.0.0.1:53"), "4711"},
		{"other port", udp4, "udp", at("127.0.0.1:54"), ""},
		{"other address", udp4, "udp", at("127.0.0.2:53"), ""},
		{"wildcard", any4, "udp", at("169.254.20.10:53"), "4712"},
		{"wildcard 6", any6, "tcp", at("169.254.20.10:53"), "4713"},
		{"same 6", loop6, "tcp", at("[::1]:53"), "4714"},
		{"mapped", mapped, "udp", at("127.0.0.1:53"), "4715"},
		{"a connection is no listener", accepted, "tcp", at("127.0.0.1:53"), ""},
		{"junk", "sl local_address", "udp", at("127.0.0.1:53"), ""},
		{"more junk", strings.Repeat("x ", 12), "udp", at("127.0.0.1:53"), ""},
	} {
		inode, _, ok := conflicting(tc.line, tc.protocol, tc.ap)
		if inode != tc.inode || ok != (tc.inode != "") {
			t.Errorf("%s: %q %v, want %q", tc.name, inode, ok, tc.inode)
		}
	}
}

func FuzzConflicting(f *testing.F) {
	f.Add("  12: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0")
	f.Fuzz(func(_ *testing.T, line string) {
		conflicting(line, "tcp", netip.MustParseAddrPort("127.0.0.1:53"))
	})
}

func TestLogLines(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{`{"level":"INFO","msg":"[INFO] Reloading"}`, "level=DEBUG msg=coredns text=Reloading"},
		{`{"level":"INFO","msg":"[ERROR] Restart failed: no"}`, `level=ERROR msg=coredns text="Restart failed: no"`},
		{`{"level":"INFO","msg":"[WARNING] No files matching import glob pattern: x"}`, `level=WARN msg=coredns text="No files matching import glob pattern: x"`},
		{`{"level":"INFO","msg":"a foreign line"}`, `level=INFO msg=coredns text="a foreign line"`},
		{`{"level":"ERROR","msg":"2 a. A: i/o timeout","plugin":"errors"}`, `level=WARN msg=coredns text="2 a. A: i/o timeout" plugin=errors`},
		{`{"level":"ERROR","msg":"x","plugin":"forward"}`, `level=ERROR msg=coredns text=x plugin=forward`},
		{`{"level":"FATAL","msg":"x"}`, `level=ERROR msg=coredns text=x`},
		{`{"level":"INFO","msg":"10.0.0.1:4000 ...","plugin":"log","client_ip":"10.0.0.1","qname":"a.","qtype":"A","protocol":"udp","rcode":"NOERROR","response_size":45,"duration_seconds":0.001}`,
			`level=INFO msg=query client=10.0.0.1 name=a. type=A protocol=udp rcode=NOERROR size=45 seconds=0.001`},
		{"not JSON", `level=WARN msg=coredns text="not JSON"`},
	} {
		out := new(bytes.Buffer)
		log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := new(lines)
		l.log.Store(log)
		if n, err := l.Write([]byte(tc.line + "\n")); err != nil || n != len(tc.line)+1 {
			t.Errorf("%s: wrote %d, %v", tc.line, n, err)
		}
		if !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s\nbecame %swant   %s", tc.line, out, tc.want)
		}
	}
}

// elsewhere, in the environment, has this program send its first thread into a new netns and name who holds a port.
const elsewhere = "NEARDNS_TEST_FIRST_THREAD_ELSEWHERE"

func init() { // on the first thread
	text := os.Getenv(elsewhere)
	if text == "" {
		return
	}
	at, err := netip.ParseAddrPort(text)
	if err == nil {
		err = unix.Unshare(unix.CLONE_NEWNET)
	}
	done := make(chan struct{})
	go func() {
		var exact []string
		if err == nil {
			exact, _, err = Listening("udp", at)
		}
		fmt.Println(exact, err)
		close(done)
	}()
	<-done
	os.Exit(0)
}

// Go may run what enters a pod's netns on the first thread, which is what /proc/self and /proc/net tell of.
func TestListeningFirstThreadElsewhere(t *testing.T) {
	testutil.RequireRoot(t)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), elsewhere+"="+conn.LocalAddr().String())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("(pid %d)] <nil>", os.Getpid()); !strings.Contains(string(out), want) {
		t.Errorf("said %s, want %s", out, want)
	}
}

// ownChain makes a server whose Corefiles are an operator's.
func ownChain() *Server {
	return New(slog.New(slog.DiscardHandler), Plugin{Name: "metrics", Setup: metrics.Setup(nil)}, Plugin{Name: "admit", Setup: admit.Setup(admit.New(admit.DefaultLimit))},
		Plugin{Name: "complete", Setup: complete.Setup(complete.NewMemory(), new(complete.Metrics), func(netip.Addr, bool) *complete.Search { return nil })})
}

// TestReloadOfADeadServer lets every socket die and a reload come before anybody has noticed.
func TestReloadOfADeadServer(t *testing.T) {
	s := ownChain()
	cfg := Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 45353, Misses: 1024, Connections: 1024,
		Override: ". {\n    whoami\n}\n"}
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	done := s.Done()
	for _, p := range s.points {
		_ = p.socket.Close()
	}
	<-done
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"))
	if err := s.Restart(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil { // which ends the new sockets, too
		t.Fatal(err)
	}
}

// TestAskChain asks by the chain, where an operator's Corefile answers, refuses or is not there yet.
func TestAskChain(t *testing.T) {
	s := ownChain()
	if err := s.Ask(t.Context(), "cluster.local"); err == nil {
		t.Error("a server that was not started answers")
	}
	cfg := Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 45354, Misses: 1024, Connections: 1024,
		Override: "cluster.local {\n    whoami\n}\nsick.example {\n    template ANY ANY {\n        rcode SERVFAIL\n    }\n}\n"}
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	for zone, want := range map[string]string{"cluster.local": "", "sick.example": "SERVFAIL", "elsewhere.example": "REFUSED"} {
		err := s.Ask(t.Context(), zone)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", zone, err, want)
		}
	}
}
