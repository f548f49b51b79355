package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// way is an IP family and a protocol of a pod's queries.
type way struct {
	is4     bool
	network string
}

func (w way) String() string {
	if w.is4 {
		return w.network + "4"
	}
	return w.network + "6"
}

func ways() []way { return []way{{true, "udp"}, {true, "tcp"}, {false, "udp"}, {false, "tcp"}} }

// loss is a place where the queries of a pod, or the answers to them, get lost.
type loss struct {
	name string
	lost func(way) bool
	// begin starts the loss for one pod, and returns a function that ends it.
	begin func(r *nftRig, pod *testutil.Pod) (end func())
}

// netdev drops packets that the rules match at a link's netdev hook, as an XDP or tc program would.
func netdev(ns *testutil.NetNS, link, hook, rules string) func() {
	ns.RunInput(fmt.Sprintf("table netdev lost_%[1]s {\n\tchain c {\n\t\ttype filter hook %[2]s device %[1]q priority 0; policy accept;\n%[3]s\n\t}\n}\n", link, hook, rules), "nft", "-f", "-")
	return func() { ns.Run("nft", "delete", "table", "netdev", "lost_"+link) }
}

func losses() []loss {
	all := func(way) bool { return true }
	// An egress policy that allows kube-dns and nothing else, before the host's prerouting.
	onlyKubeDNS := func(r *nftRig) string {
		return fmt.Sprintf("ip daddr %s accept\nip6 daddr %s accept\nudp dport 53 drop\ntcp dport 53 drop", r.server(way{is4: true}, false).Addr(), r.server(way{}, false).Addr())
	}
	return []loss{
		{"a policy before prerouting", all, func(r *nftRig, pod *testutil.Pod) func() {
			return netdev(r.Node.Host, pod.HostInterface, "ingress", onlyKubeDNS(r))
		}},
		{"over udp", func(w way) bool { return w.network == "udp" }, func(r *nftRig, pod *testutil.Pod) func() {
			return netdev(r.Node.Host, pod.HostInterface, "ingress", "ip daddr 169.254.20.11 udp dport 53 drop\nip6 daddr fd00:90de:d95::b udp dport 53 drop")
		}},
		{"over tcp", func(w way) bool { return w.network == "tcp" }, func(r *nftRig, pod *testutil.Pod) func() {
			return netdev(r.Node.Host, pod.HostInterface, "ingress", "ip daddr 169.254.20.11 tcp dport 53 drop\nip6 daddr fd00:90de:d95::b tcp dport 53 drop")
		}},
		{"in ipv6", func(w way) bool { return !w.is4 }, func(r *nftRig, pod *testutil.Pod) func() {
			return netdev(r.Node.Host, pod.HostInterface, "ingress", "ip6 daddr fd00:90de:d95::b drop")
		}},
		{"the answers", all, func(_ *nftRig, pod *testutil.Pod) func() {
			return netdev(pod.NetNS, "eth0", "ingress", "ip saddr 169.254.20.11 drop\nip6 saddr fd00:90de:d95::b drop")
		}},
		{"a tc program", func(w way) bool { return w.is4 }, func(r *nftRig, pod *testutil.Pod) func() {
			r.Node.Host.Run("tc", "qdisc", "add", "dev", pod.HostInterface, "clsact")
			r.Node.Host.Run("tc", "filter", "add", "dev", pod.HostInterface, "ingress", "protocol", "ip", "u32",
				"match", "ip", "dst", "169.254.20.11/32", "action", "mirred", "egress", "redirect", "dev", "neardns0")
			return func() { r.Node.Host.Run("tc", "qdisc", "del", "dev", pod.HostInterface, "clsact") }
		}},
	}
}

// oneSYN is shorter than the second after which a SYN is repeated: the switch sends a repeated SYN to kube-dns, and kube-dns would answer.
const oneSYN = testutil.Silence / 2

// who queries once and returns the name of the server that answers, "" if none does.
func (r *nftRig) who(ns *testutil.NetNS, w way, wait time.Duration) string {
	a, err := testutil.Ask(ns, r.server(w, false), "a.cluster.local", dns.TypeTXT, w.network, testutil.AskOptions{Timeout: wait, EDNS: 1232})
	if err != nil {
		return ""
	}
	return a.Who
}

// server returns the address that a pod queries: the cluster DNS address, or the steering address itself.
func (r *nftRig) server(w way, steering bool) netip.AddrPort {
	for _, d := range r.Host.Redirects {
		if d.Is4() == w.is4 && steering {
			return netip.AddrPortFrom(d.Steering, 53)
		} else if d.Is4() == w.is4 {
			return netip.AddrPortFrom(d.ClusterDNS, 53)
		}
	}
	return netip.AddrPort{}
}

// everyWay runs f for all ways at once.
func everyWay(f func(way)) {
	var wg sync.WaitGroup
	for _, w := range ways() {
		wg.Go(func() { f(w) })
	}
	wg.Wait()
}

// Wherever a pod's queries or their answers are lost, the pod table bypasses the agent by itself: no neardns process takes part.
func TestPodIsBypassed(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Serve()
	pods := map[string]*testutil.Pod{}
	for i, l := range losses() {
		pods[l.name] = r.Steered(fmt.Sprintf("p%d", i))
	}
	well := r.Steered("well")
	t.Run("losses", func(t *testing.T) {
		for _, l := range losses() {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				pod := pods[l.name]
				everyWay(func(w way) {
					if who := r.who(pod.NetNS, w, testutil.Patience()); who != "AGENT" {
						t.Errorf("%s before: answered by %q", w, who)
					}
				})
				end := l.begin(r, pod)
				bypassed := func(table *nft.Nftables, w way) (bool, error) {
					unanswered, err := table.Unanswered(steer.Pod{Redirects: r.Host.Redirects})
					return slices.ContainsFunc(unanswered, func(u steer.PodWay) bool {
						return u.ClusterDNS == r.server(w, false).Addr() && u.Protocol.String() == w.network
					}), err
				}
				everyWay(func(w way) {
					if !l.lost(w) {
						if who := r.who(pod.NetNS, w, testutil.Patience()); who != "AGENT" {
							t.Errorf("%s is not lost and answered by %q", w, who)
						}
						return
					}
					table := open(t, pod.NetNS)
					testutil.Eventually(t, func() error { // on a busy machine, kube-dns may be the one that answers a SYN that was sent again
						who := r.who(pod.NetNS, w, oneSYN)
						is, err := bypassed(table, w)
						return errors.Join(err, testutil.ErrorIf(who != "KUBEDNS" || !is, "%s is answered by %q; bypassed: %t", w, who, is))
					})
				})
				for _, w := range ways() {
					if is, err := bypassed(open(t, pod.NetNS), w); err != nil || is != l.lost(w) {
						t.Errorf("%s is lost: %v, bypassed: %v, %v", w, l.lost(w), is, err)
					}
				}
				end()
				everyWay(func(w way) {
					if !l.lost(w) {
						return
					}
					// A SYN-ACK that the agent's host sends once more, 1, 3 and 7 s after a SYN, is an answer, too.
					late := w.network == "tcp" && l.name == "the answers"
					if who := r.who(pod.NetNS, w, testutil.Patience()); who != "KUBEDNS" && !late {
						t.Errorf("%s: answered by %q before anybody tried the way", w, who)
					}
					// Whether the agent answers the pod's netns at the steering address, which needs no pod table.
					if _, err := testutil.Ask(pod.NetNS, r.server(w, true), "a.cluster.local", dns.TypeTXT, w.network, testutil.AskOptions{Timeout: testutil.Silence}); err == nil {
						t.Errorf("%s: the table lets the steering address through", w)
					}
					testutil.Eventually(t, func() error {
						who := r.who(pod.NetNS, w, oneSYN)
						return testutil.ErrorIf(who != "AGENT", "%s: answered by %q after an answer from the steering address", w, who)
					})
				})
			})
		}
	})
	r.Want("AGENT", well.NetNS, "beside them", r.ClusterDNS()...)
	for _, pod := range pods {
		must(t, open(t, pod.NetNS).Verify(steer.Pod{Redirects: r.Host.Redirects}))
	}
}

// If no neardns process runs and the host table is gone, DNS in steered pods works as without neardns.
func TestPodIsBypassedWithoutASwitch(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Serve()
	pod := r.Steered("pod")
	r.Want("AGENT", pod.NetNS, "before", r.ClusterDNS()...)
	r.Kill()
	r.Node.Host.Run("nft", "delete", "table", "inet", steer.TableName)
	everyWay(func(w way) {
		testutil.Eventually(t, func() error {
			who := r.who(pod.NetNS, w, testutil.Silence)
			return testutil.ErrorIf(who != "KUBEDNS", "%s: answered by %q", w, who)
		})
	})
}

// A TCP connection that bypasses the agent still does so when the pod is steered again, and one that the agent serves stays with it.
func TestBypassedConnections(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Serve()
	pod := r.Steered("pod")
	server := r.ClusterDNS()[0]
	steered := r.dial(pod.NetNS, server)
	steered.want("AGENT", "steered")
	pod.Run("nft", "flush", "set", "inet", "neardns", "trusted1")
	pod.Run("nft", "add", "element", "inet", "neardns", "waiting1", "{ ipv4 . tcp }")
	bypassed := r.dial(pod.NetNS, server)
	bypassed.want("KUBEDNS", "bypassed")
	steered.want("AGENT", "steered, then bypassed")
	pod.Run("nft", "flush", "set", "inet", "neardns", "waiting1")
	r.dial(pod.NetNS, server).want("AGENT", "steered again")
	bypassed.want("KUBEDNS", "bypassed, then steered again")
	steered.want("AGENT", "steered all along")
}

// kube-dns's answer by the fallback counts as an answer: if the agent is dead, a pod stays steered, and the agent serves it when it is
// back.
func TestFallbackIsNoLoss(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Serve()
	pod := r.Steered("pod")
	r.Withdraw()
	// The trust in a way ends podTrust after its last answer; here it ends at once. A way that waits for an answer is then bypassed.
	for range 2 {
		r.Want("KUBEDNS", pod.NetNS, "no lease", r.ClusterDNS()...)
		if waiting := pod.Run("nft", "list", "set", "inet", steer.TableName, "waiting1"); strings.Contains(waiting, "ipv4") {
			t.Errorf("an answer of kube-dns leaves the way waiting:\n%s", waiting)
		}
		pod.Run("nft", "flush", "set", "inet", steer.TableName, "trusted1")
	}
	r.Renew()
	r.Want("AGENT", pod.NetNS, "leased again", r.ClusterDNS()...)
}

// A redirect that is taken away and added again is not bypassed for what was lost before.
func TestBypassEndsWithTheRedirect(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Serve()
	pod := r.Steered("pod")
	pod.Run("nft", "add", "element", "inet", steer.TableName, "waiting1", "{ ipv6 . udp, ipv6 . tcp }")
	ways := []way{{false, "udp"}, {false, "tcp"}}
	for _, w := range ways {
		if who := r.who(pod.NetNS, w, testutil.Patience()); who != "KUBEDNS" {
			t.Errorf("%s waits for an answer and is answered by %q", w, who)
		}
	}
	b := open(t, pod.NetNS)
	both := steer.Pod{Redirects: r.Host.Redirects}
	only4 := steer.Pod{Redirects: slices.DeleteFunc(slices.Clone(both.Redirects), func(r steer.Redirect) bool { return !r.Is4() })}
	must(t, b.Apply(only4))
	must(t, b.Apply(both))
	for _, w := range ways {
		if who := r.who(pod.NetNS, w, testutil.Patience()); who != "AGENT" {
			t.Errorf("%s was added again and is answered by %q", w, who)
		}
	}
}
