package iptables_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
)

// TestListsAreClosed has root without any capability, and another user, write leases of an agent that does not renew, also after the
// rules were made anew. Whoever looks may read them.
func TestListsAreClosed(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.Steered("pod")
		r.Listen()
		bare := []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}
		forge := func(when string) {
			t.Helper()
			for _, who := range [][]string{bare, append([]string{"setpriv", "--reuid=65534", "--clear-groups"}, bare[1:]...)} {
				for _, list := range []string{"neardns_udp4", "neardns_tcp4", "neardns_udp6", "neardns_tcp6"} {
					file := "/proc/net/xt_recent/" + list
					for _, do := range []string{"echo +169.254.20.11 > " + file, "chmod 0666 " + file, "chown 0 " + file} {
						if out, err := r.Node.Host.TryRun("", append(who, "sh", "-c", do)...); err == nil {
							t.Errorf("%s: %s can %q: %s", when, strings.Join(who, " "), do, out)
						}
					}
					if out, err := r.Node.Host.TryRun("", append(who, "cat", file)...); err != nil {
						t.Errorf("%s cannot be read: %v: %s", file, err, out)
					}
				}
			}
			r.Want("KUBEDNS", pod.NetNS, when+": nobody renewed", r.Servers()...)
		}
		forge("at first")
		r.Renew()
		r.Want("AGENT", pod.NetNS, "the agent's own leases", r.Servers()...)
		r.Withdraw()
		r.Node.Host.Run("iptables"+strings.TrimPrefix(string(variant), "iptables"), "-w", "-t", "raw", "-F")
		r.Node.Host.Run("ip6tables"+strings.TrimPrefix(string(variant), "iptables"), "-w", "-t", "raw", "-F")
		must(t, r.rules.Apply(r.Host))
		forge("made anew")
	})
}
