package nft_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// These, in the environment, say how many Services the other program loads in the tests of A.1, and how many pairs of loads
// are measured. iptables loads 20,000 in seconds; nft itself takes minutes for as many, so that is asked for by hand.
const (
	loadServices = "NEARDNS_LOAD_SERVICES"
	loadRounds   = "NEARDNS_LOAD_ROUNDS"
)

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

func newLoader(t *testing.T, mode testutil.ProxyMode, least int) *loader {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: mode, Attach: testutil.PTP}, func(h *steer.Host) { h.Lifetime = 0 })
	l := &loader{r: r, mode: mode, proxy: r.Node.Proxy}
	n := fromEnv(t, loadServices, least)
	if l.rules = l.proxy.Rules(true, testutil.ManyServices(true, n)); mode == testutil.IPTables {
		l.rules = testutil.BulkIPTables(true, n) // iptables itself takes minutes to find 20,000 chains
	}
	return l
}

// load times the one command, and takes away again what was loaded.
func (l *loader) load(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	l.r.Node.Host.RunInput(l.rules, l.proxy.Loader(true)...)
	took := time.Since(start)
	l.clean(t)
	return took
}

// clean takes kube-proxy's rules away and writes those of kube-dns anew; our table stays.
func (l *loader) clean(t *testing.T) {
	t.Helper()
	if l.mode == testutil.NFTables {
		l.r.Node.Host.Run("nft", "delete", "table", "ip", "kube-proxy")
	} else {
		l.r.Node.Host.Run("nft", "delete table ip nat; delete table ip filter")
	}
	l.proxy = testutil.InstallProxy(t, l.r.Node.Host, l.mode, l.r.services()...)
}

func modesOfLoad(t *testing.T, f func(t *testing.T, l *loader)) {
	t.Helper()
	if testing.Short() {
		testutil.Skip(t, "loads thousands of rules; not with -short")
	}
	testutil.RequireRoot(t)
	for mode, least := range map[testutil.ProxyMode]int{testutil.IPTables: 20000, testutil.NFTables: 2000} {
		t.Run(string(mode), func(t *testing.T) { f(t, newLoader(t, mode, least)) })
	}
}

// The agent's pace, from its defaults.
const renewEvery = 150 * time.Millisecond

// While another program loads very many rules the lease is renewed within its lifetime, all the time: no question falls
// back, although the loader holds the commit mutex for seconds. A machine that is short of time for this very process may
// spoil a try, more than one in ten on a busy one, a kernel that makes renewals wait spoils each, so the best of six counts.
func TestCritiqueA01LeaseIsRenewedUnderLoad(t *testing.T) {
	modesOfLoad(t, func(t *testing.T, l *loader) {
		pod := l.r.Steered("pod")
		l.r.Addresses()
		l.r.Listen()
		var faults []string
		for range 6 {
			gap, fellBack := l.renewBeside(t, pod.NetNS)
			if gap <= steer.DefaultLifetime && fellBack == 0 {
				return
			}
			faults = append(faults, fmt.Sprintf("no renewal for %v, %d questions fell back", gap, fellBack))
		}
		t.Errorf("lease of %v beside a load: %q", steer.DefaultLifetime, faults)
	})
}

// renewBeside renews and asks while the rules are loaded; it returns the longest time between two renewals and how many
// questions fell back.
func (l *loader) renewBeside(t *testing.T, pod *testutil.NetNS) (gap time.Duration, fellBack int) {
	t.Helper()
	r := l.r
	r.Renew()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(renewEvery)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for _, a := range r.Ours() {
				for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
					if err := r.Lease.Renew(a, p); err != nil {
						t.Error(err)
						return
					}
				}
			}
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
	}()
	loaded := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := r.Node.Host.TryRun(l.rules, l.proxy.Loader(true)...)
		loaded <- err
	}()
	c, err := testutil.Dial(pod, "udp", r.ClusterDNS()[0], testutil.AskOptions{Timeout: 10 * time.Second})
	must(t, err)
	defer c.Close()
	asked := 0
	for loading := true; loading; asked++ {
		answer, err := c.Ask("a.cluster.local", dns.TypeTXT)
		if err != nil || answer.Who != "AGENT" {
			t.Logf("question %d: %v, %v", asked, answer, err)
			fellBack++
		}
		select {
		case err := <-loaded:
			must(t, err)
			loading = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	close(done)
	<-ended
	t.Logf("loaded in %v; %d questions, %d fell back; longest time between renewals %v", time.Since(start), asked, fellBack, gap)
	l.clean(t)
	return gap, fellBack
}

// Renewals slow such a load by a tenth at most: rounds with and without them in turn. A busy machine makes some loads of either kind
// take twice as long, and none shorter, so the shortest of each kind are compared; where they differ, more rounds tell whether it is
// by chance. A real slowdown spoils all.
func TestCritiqueA01LoadIsNotSlowedDown(t *testing.T) {
	modesOfLoad(t, func(t *testing.T, l *loader) {
		r := l.r
		r.Addresses()
		r.Listen()
		rounds := fromEnv(t, loadRounds, 3)
		var shortest [2]time.Duration
		for round := range 4 * rounds {
			var took [2]time.Duration
			for turn := range 2 {
				with := (round + turn) % 2
				stop := func() {}
				if with == 1 {
					stop = r.keepRenewing(renewEvery)
				}
				took[with] = l.load(t)
				stop()
				if round == 0 || took[with] < shortest[with] {
					shortest[with] = took[with]
				}
			}
			ratio := float64(shortest[1]) / float64(shortest[0])
			t.Logf("without %v, with renewals %v; the shortest so far: ratio %.3f", took[0], took[1], ratio)
			if round+1 >= rounds && ratio <= 1.1 {
				return
			}
		}
		t.Errorf("loading takes at least %v without and %v beside renewals, at most 1.1 times as long is allowed", shortest[0], shortest[1])
	})
}
