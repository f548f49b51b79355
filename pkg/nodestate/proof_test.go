package nodestate

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestProof(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	addr := netip.MustParseAddr("10.96.0.10")
	p, _, err := ProofFile(dir).Read()
	if err != nil || p.Covers(addr) {
		t.Fatalf("absent: %v, %v", p, err)
	}
	want := Proof{ClusterDNS: []netip.Addr{addr}, Time: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	testutil.Must(t, ProofFile(dir).Write(want))
	p, _, err = ProofFile(dir).Read()
	if err != nil || !p.Covers(addr) || p.Covers(netip.MustParseAddr("10.96.0.11")) || !p.Time.Equal(want.Time) {
		t.Fatalf("read %v, %v", p, err)
	}
	for range 2 {
		testutil.Must(t, ProofFile(dir).Remove())
	}
	testutil.Must(t, os.WriteFile(ProofFile(dir).Path, []byte("half"), 0o644))
	if p, _, err := ProofFile(dir).Read(); err == nil || p.Covers(addr) {
		t.Errorf("a torn proof proves something: %v, %v", p, err)
	}
}
