package iptables_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
)

// tamper prints which lists of leases it can change, and which it cannot read.
const tamper = `for f in neardns_udp4 neardns_tcp4 neardns_udp6 neardns_tcp6; do
	f=/proc/net/xt_recent/$f
	(echo +169.254.20.11 > $f) && echo "wrote $f"
	chmod 0666 $f && echo "opened $f"
	chown 0 $f && echo "took $f"
	cat $f >/dev/null || echo "cannot read $f"
done`

// TestListsAreClosed: neither root without capabilities nor another user can write leases, also after the rules were made again. They
// can read the lists.
func TestListsAreClosed(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.Steered("pod")
		r.Listen()
		bare := []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}
		forge := func(when string) {
			t.Helper()
			for _, who := range [][]string{bare, append([]string{"setpriv", "--reuid=65534", "--clear-groups"}, bare[1:]...)} {
				if out := r.Node.Host.Run(append(who, "sh", "-c", tamper)...); out != "" {
					t.Errorf("%s: %s:\n%s", when, strings.Join(who, " "), out)
				}
			}
			r.Want("KUBEDNS", pod.NetNS, when+": nobody renewed", r.Servers()...)
		}
		forge("at first")
		r.Renew()
		r.Want("AGENT", pod.NetNS, "the agent's own leases", r.Servers()...)
		r.Withdraw()
		r.Node.Host.Run(string(variant), "-w", "-t", "raw", "-F")
		r.Node.Host.Run("ip6tables-"+variant.Suffix(), "-w", "-t", "raw", "-F")
		must(t, r.rules.Apply(r.Host))
		forge("made again")
	})
}
