package nft

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/neardns/neardns/pkg/steer"
)

// Each expression that is written here is what google/nftables writes.
func TestEncodedAsByTheLibrary(t *testing.T) {
	addr := netip.MustParseAddr
	redirects := []steer.Redirect{{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}, {ClusterDNS: addr("fd00:10:96::a"), Steering: addr("fd00:90de:d95::b")}}
	locals := []steer.Local{{Address: addr("169.254.20.10"), ClusterDNS: addr("10.96.0.10")}, {Address: addr("fd00:90de:d95::a"), ClusterDNS: addr("fd00:10:96::a")}}
	seen, own := 0, 0
	for _, rs := range []steer.Ruleset{steer.Pod{Redirects: redirects}, steer.Host{Redirects: redirects, Locals: locals, Uplinks: []string{"eth0"}, InterceptNode: true, OwnLocals: true, HealthPort: 8080}} {
		for _, c := range render(rs).chains {
			for _, r := range c.rules {
				for _, o := range r.ops {
					if o.zone != zoneNone {
						continue
					}
					seen++
					var a attributes
					if !a.expression(o.expr) {
						continue
					}
					own++
					if p, ok := o.expr.(*expr.Payload); ok && p.OperationType == expr.PayloadWrite && p.CsumType == expr.CsumTypeNone {
						continue // the library omits the flags; TestChecksumsOnTheWire tests ours
					}
					want, err := expr.Marshal(inet, o.expr)
					if err != nil || !bytes.Equal(a.data, want) {
						t.Errorf("%T of %q: %x, not %x (%v)", o.expr, r.text(), a.data, want, err)
					}
				}
			}
		}
	}
	if own < seen*8/10 {
		t.Errorf("%d of %d expressions are written here", own, seen)
	}
}
