package bpf

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestSelfTest: the self-test passes, leaves nothing behind, and fails if a program answers differently.
func TestSelfTest(t *testing.T) {
	l := open(t, 4)
	testutil.Check(t, l.Test())
	var group uint32
	if len(l.byPlace) != 0 || l.objects.Served.Lookup(servedAt(netip.AddrPortFrom(testServer4, dnsPort)), &group) == nil {
		t.Error("something was left behind")
	}
	if all, err := l.Counts(); err != nil || all[0] != 0 || len(all) != SeriesMost {
		t.Errorf("counted as somebody's: %v %v", all[0], err)
	}
	// A control of another generation stands for any fault: the program then has no answers.
	broken := l.control
	broken.Generation++
	testutil.Must(t, l.objects.Controls.Put(uint32(0), &broken))
	testutil.WantError(t, l.Test(), "does not answer at 192.0.2.53")
}

// TestTry: Try returns the program's answer to a query of any kind, or none.
func TestTry(t *testing.T) {
	l := open(t, 4)
	a, frame := numbered(t, 1)
	put(t, l, a)
	for _, server := range []netip.Addr{server4, server6} {
		if got, ok, err := l.Try(server, payloadOf(frame)); err != nil || !ok || len(got) != a.Entry.Size() {
			t.Errorf("%s: %x %t %v", server, got, ok, err)
		}
		if _, ok, err := l.Try(server, payloadOf(frame)[:14]); err != nil || ok {
			t.Errorf("%s: %t %v", server, ok, err)
		}
	}
}

// TestOtherClock: in a time namespace, whose clock is not the kernel's, the self-test fails, because answers would be served for an hour
// too long.
func TestOtherClock(t *testing.T) {
	testutil.RequireRoot(t)
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		testutil.Skip(t, "this kernel has no time namespaces")
	}
	if !testutil.InChild(t, "unshare", "--time", "--boottime", "3600", "--fork") {
		return
	}
	testutil.WantError(t, open(t, 4).Test(), "another clock")
}

// TestWithoutCapabilities: if a process may not load the program, the error names the missing capabilities.
func TestWithoutCapabilities(t *testing.T) {
	const key = "NEARDNS_FOLDER"
	if os.Getenv(key) == "" {
		t.Setenv(key, bpffs(t))
	}
	if !testutil.InChild(t, "setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-bpf,-sys_admin") {
		return
	}
	l, err := Open(Options{Folder: os.Getenv(key), Entries: 4, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		l.Close()
	}
	testutil.WantError(t, err, "CAP_BPF")
}

// TestWithoutResource: the program can be loaded by a process that may not raise its limit of locked memory if that is high enough.
func TestWithoutResource(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t, "prlimit", "--memlock=8388608:8388608", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource") {
		return
	}
	testutil.Check(t, open(t, 4096).Test())
}
