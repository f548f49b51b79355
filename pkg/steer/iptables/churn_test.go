package iptables_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// foreign is the number of other Services in table nat, with five rules each, which a restore of the table reads, checks and writes
// again.
const foreign = 100

// TestChurn writes other host rules and then the first ones again, as reloads do, while kube-proxy makes and deletes chains all the time
// and a pod sends queries. Either server may answer such a query, but one always must: a packet lost between two rulesets would never be
// answered.
func TestChurn(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.Steered("pod")
		r.Listen()
		restore := []string{string(variant) + "-restore", "--noflush", "--counters", "-w", "30"}
		r.Node.Host.RunInput(testutil.BulkIPTables(true, foreign), restore...)
		r.Want("KUBEDNS", pod.NetNS, "before", r.Servers()...)
		r.churn(t, pod, restore)
		r.Want("AGENT", pod.NetNS, "afterwards", r.Servers()...)
		must(t, r.rules.Verify(r.Host))
	})
}

// churn has the pod query without pause while neardns's rules and kube-proxy's are written.
func (r *variantRig) churn(t *testing.T, pod *testutil.Pod, restore []string) {
	t.Helper()
	var over atomic.Bool
	var wg sync.WaitGroup
	patient := testutil.AskOptions{}
	for _, server := range r.Servers() {
		for _, network := range []string{"udp", "tcp"} {
			kept, err := testutil.OpenUDP(pod.NetNS, server.Addr().Is4(), patient)
			must(t, err)
			defer kept.Close()
			wg.Go(func() {
				for i := 0; !over.Load(); i++ {
					var err error
					if network == "udp" && i%2 == 0 { // a socket that stays, and a new one
						_, err = kept.Ask(server, "a.cluster.local", dns.TypeTXT)
					} else {
						_, err = testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, network, patient)
					}
					if err != nil {
						t.Errorf("question %d to %s over %s: %v", i, server, network, err)
						return
					}
				}
			})
		}
	}
	wg.Go(func() {
		for i := 0; !over.Load(); i++ {
			text := fmt.Sprintf("*nat\n:KUBE-SVC-CHURN%d - [0:0]\n-A KUBE-SVC-CHURN%d -j RETURN\n-F KUBE-SVC-CHURN%d\n-X KUBE-SVC-CHURN%d\nCOMMIT\n", i, i, i, i)
			if out, err := r.Node.Host.TryRun(text, restore...); err != nil {
				t.Errorf("kube-proxy's sync %d: %v\n%s", i, err, out)
				return
			}
		}
	})
	more := r.Host
	more.Redirects = append(slices.Clone(more.Redirects), steer.Redirect{ClusterDNS: addr("10.96.0.20"), Steering: addr("169.254.20.12")})
	must(t, r.rules.Apply(more)) // while kube-dns answers
	r.Renew()
	must(t, r.rules.Apply(r.Host)) // while the agent does
	over.Store(true)
	wg.Wait()
}
