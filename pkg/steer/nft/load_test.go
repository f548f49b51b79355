package nft_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// loadServices, in the environment, is how many Services the other program loads, if not as many as each test has. iptables
// loads 20,000 in seconds, nft takes minutes for as many.
const loadServices = "NEARDNS_LOAD_SERVICES"

func fromEnv(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// loader loads Services' rules as kube-proxy does at its start, again and again.
type loader struct {
	r     *nftRig
	mode  testutil.ProxyMode
	rules string
	proxy *testutil.Proxy
}

func newLoader(t *testing.T, mode testutil.ProxyMode, least int, lifetime time.Duration) *loader {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: mode, Attach: testutil.PTP}, func(h *steer.Host) { h.Lifetime = lifetime })
	l := &loader{r: r, mode: mode, proxy: r.Node.Proxy}
	n := fromEnv(t, loadServices, least)
	if l.rules = l.proxy.Rules(true, testutil.ManyServices(true, n)); mode == testutil.IPTables {
		l.rules = testutil.BulkIPTables(true, n) // iptables itself takes minutes to find 20,000 chains
	}
	return l
}

// clean removes kube-proxy's rules and writes those of kube-dns again; the neardns table stays.
func (l *loader) clean(t *testing.T) {
	t.Helper()
	if l.mode == testutil.NFTables {
		l.r.Node.Host.Run("nft", "delete", "table", "ip", "kube-proxy")
	} else {
		l.r.Node.Host.Run("nft", "delete table ip nat; delete table ip filter")
	}
	l.proxy = testutil.InstallProxy(t, l.r.Node.Host, l.mode, l.r.services()...)
}

// modesOfLoad runs a test with a loader of 1,000 times thousands Services in kube-proxy's mode iptables, and with one of a tenth of them
// in its mode nftables.
func modesOfLoad(t *testing.T, thousands int, lifetime time.Duration, f func(t *testing.T, l *loader)) {
	t.Helper()
	testutil.RequireRoot(t)
	for mode, least := range map[testutil.ProxyMode]int{testutil.IPTables: thousands * 1000, testutil.NFTables: thousands * 100} {
		t.Run(string(mode), func(t *testing.T) { f(t, newLoader(t, mode, least, lifetime)) })
	}
}

// While another program loads very many rules and holds the commit mutex for seconds, leases are renewed and the agent answers each
// query.
func TestLeaseUnderLoad(t *testing.T) {
	modesOfLoad(t, 2, rig.Forever, func(t *testing.T, l *loader) {
		r := l.r
		pod := r.Steered("pod")
		r.Serve()
		loaded := make(chan error, 1)
		go func() {
			_, err := r.Node.Host.TryRun(l.rules, l.proxy.Loader(true)...)
			loaded <- err
		}()
		c, err := testutil.Dial(pod.NetNS, "udp", r.ClusterDNS()[0], testutil.AskOptions{})
		must(t, err)
		defer c.Close()
		for asked := 0; ; asked++ {
			r.Renew()
			by(t, "AGENT", "query %d", asked)(c.Ask("a.cluster.local", dns.TypeTXT))
			select {
			case err := <-loaded:
				must(t, err)
				l.clean(t)
				must(t, r.nft.Verify(r.Host))
				return
			default:
			}
		}
	})
}
