package lifecycle

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// A record of the fallback check holds for one boot and one back end.
func TestProofIsOfThisBootAndNode(t *testing.T) {
	dir := t.TempDir()
	addrs := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	read := func(p *verifiedFallbacks, want bool, what string) {
		t.Helper()
		if got, err := p.Read(); err != nil || slices.Equal(got, addrs) != want {
			t.Errorf("%s: %v, %v; wanted: %v", what, got, err, want)
		}
	}
	testutil.Must(t, (&verifiedFallbacks{dir: dir}).Write(addrs))
	read(&verifiedFallbacks{dir: dir}, true, "the same node")
	read(&verifiedFallbacks{dir: dir, backend: rules.OfVariant("iptables-nft", nil)}, false, "another back end")
	proof, _, err := nodestate.ProofFile(dir).Read()
	testutil.Must(t, err)
	proof.Boot = "00000000-0000-0000-0000-000000000000"
	testutil.Must(t, nodestate.ProofFile(dir).Write(proof))
	read(&verifiedFallbacks{dir: dir}, false, "another boot")
}
