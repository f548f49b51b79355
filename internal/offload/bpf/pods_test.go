package bpf

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// user starts a server in user space at an address of the netns, which answers the queries that the kernel program passes on.
func user(t *testing.T, ns *testutil.NetNS, at netip.Addr) {
	t.Helper()
	ns.AddAddr("lo", testutil.Host(at))
	testutil.ServeDNS(t, ns, testutil.DNSConfig{Name: "user", Listen: []netip.AddrPort{at53(at)}})
}

// dig sends a query from a pod's netns, always from one port with one ID: with some few checksums the kernel leaves a hit to the agent.
func dig(t *testing.T, p *testutil.Pod, at netip.Addr, args ...string) string {
	t.Helper()
	from := map[bool]string{true: "0.0.0.0#5300", false: "::#5300"}[at.Is4()]
	out := p.Run(slices.Concat([]string{"dig", "+nocookie", "+qid=4711", "-b", from, "@" + at.String()}, testutil.DigOnce, args)...)
	if strings.Contains(out, "WARNING") || strings.Contains(out, "mismatch") {
		t.Errorf("dig: %s", out)
	}
	return out
}

// wantFrom fails the test, which goes on, unless webName's TXT record is answered by "kernel" or "user".
func wantFrom(t *testing.T, who string, p *testutil.Pod, at netip.Addr, when string) {
	t.Helper()
	if out := dig(t, p, at, "+short", "TXT", webName); !strings.Contains(out, who) {
		t.Errorf("%s: answered by %s, want %s", when, out, who)
	}
}

// wantOthers fails the test, which goes on, unless the other programs at a link have these names.
func wantOthers(t *testing.T, l *Level, index int, want ...string) {
	t.Helper()
	if got, err := l.Others(index); err != nil || !slices.Equal(got, want) {
		t.Errorf("others: %v %v, want %v", got, err, want)
	}
}

// TestPods sends queries from pods on real veths, attached as CNI plugins do it, with dig and over both families. Hits come from the kernel
// and misses from the server; a steered pod's answers come from the cluster DNS address.
func TestPods(t *testing.T) {
	l := open(t, 64)
	for _, attach := range []testutil.Attach{testutil.PTP, testutil.BridgeCNI, testutil.BridgeNF, testutil.ProxyARP} {
		t.Run(string(attach), func(t *testing.T) {
			node := testutil.NewNode(t, testutil.Options{Families: testutil.Dual, Attach: attach})
			for _, a := range []netip.Addr{server4, server6} {
				user(t, node.Host, a)
			}
			pod, steered := node.AddPod("plain"), node.AddPod("steered")
			var redirects []steer.Redirect
			for _, c := range node.ClusterDNS() {
				to := server4
				if c.Is6() {
					to = server6
				}
				redirects = append(redirects, steer.Redirect{ClusterDNS: c, Steering: to})
			}
			n, err := nft.Open(steered.FD())
			testutil.Must(t, err)
			defer n.Close()
			testutil.Must(t, n.Apply(steer.Pod{Redirects: redirects}))
			const name = webName
			put(t, l, answerOf(t, name, dns.TypeA, nil, name+" 30 IN A 10.96.1.1", name+" 30 IN A 10.96.1.2"))
			put(t, l, answerOf(t, name, dns.TypeTXT, nil, name+` 30 IN TXT "kernel"`))
			large := append(many(name+" 30 IN AAAA 2001:db8::", 30), name+" 30 IN AAAA 2001:db8::1")
			put(t, l, answerOf(t, name, dns.TypeAAAA, nil, large...))

			put(t, l, answerOf(t, "gone."+name, dns.TypeTXT, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError },
				"cluster.example. 30 IN SOA ns.cluster.example. root.cluster.example. 1 2 3 4 5"))

			indexes := map[*testutil.Pod]int{}
			for _, p := range []*testutil.Pod{pod, steered} {
				index := p.HostLink().Attrs().Index
				indexes[p] = index
				var others []string
				var err error
				node.Host.Do(func() {
					if err = l.Attach(index); err == nil {
						err = l.Attach(index) // once more is nothing
					}
					if err == nil {
						others, err = l.Others(index)
					}
				})
				if err != nil || len(others) > 0 {
					t.Fatal(err, others)
				}
				trust(t, l, index)
			}
			cases, hits := []struct{ args, want string }{
				{"+short TXT " + name, `"kernel"`},
				{"+short +noedns TXT " + name, `"kernel"`},
				{"+short TXT " + upper(name), `"kernel"`},
				{"+short +bufsize=1232 AAAA " + name, "2001:db8::1"},
				{"+short +cookie=0123456789abcdef TXT " + name, `"user"`},
				{"+short +dnssec TXT " + name, `"user"`},
				{"+short TXT other." + name, `"user"`},
				{"+noedns +ignore AAAA " + name, `"user"`},
				{"+short +norecurse TXT " + name, `"user"`},
				{"+noall +comments TXT gone." + name, "NXDOMAIN"},
			}, [2]uint64{12, 2}
			if attach != testutil.PTP { // most cases do not depend on the kind of link
				cases, hits = cases[3:5], [2]uint64{4}
			}
			for _, p := range []*testutil.Pod{pod, steered} {
				for i, at := range []netip.Addr{server4, server6} {
					if p == steered {
						at = redirects[i].ClusterDNS
					}
					for _, c := range cases {
						if out := dig(t, p, at, strings.Fields(c.args)...); !strings.Contains(out, c.want) {
							t.Errorf("%s asks %s: dig %s: %s", p.Name(), at, c.args, out)
						}
					}
					if out := dig(t, p, at, upper(name)); !strings.Contains(out, upper(name)) || !strings.Contains(out, "SERVER: "+at.String()) {
						t.Errorf("the answer is not in the client's case, or not from %s: %s", at, out)
					}
				}
			}
			if got, err := l.Links(); err != nil || got[indexes[pod]] != hits || got[indexes[steered]] != hits {
				t.Errorf("hits by link: %v %v (%v), want %d", got, err, indexes, hits)
			}

			node.Host.Do(func() {
				if got, err := l.Detach(indexes[pod]); err != nil || got != hits {
					t.Errorf("detached after %d hits: %v, want %d", got, err, hits)
				}
				if hits, err := l.Detach(indexes[pod]); err != nil || hits != [2]uint64{} {
					t.Errorf("detached twice: %d, %v", hits, err)
				}
			})
			wantFrom(t, "user", pod, server4, "after Detach")
			// The other pod still has hits. When it is gone, so is the program at its link.
			wantFrom(t, "kernel", steered, redirects[0].ClusterDNS, "the other pod")
			steered.Delete()
			node.Host.Do(func() {
				if _, err := l.Detach(indexes[steered]); err != nil {
					t.Errorf("detach from a link that is gone: %v", err)
				}
				if left, err := l.Links(); err != nil || len(left) != 0 {
					t.Errorf("attached: %v %v", left, err)
				}
			})
		})
	}
}

// webName is the name to which onePod's level has an answer.
const webName = "web.shop.svc.cluster.example."

// onePod is a node with one pod, a user and a level that is attached nowhere yet.
func onePod(t *testing.T) (*Level, *testutil.Node, *testutil.Pod) {
	t.Helper()
	l := open(t, 8)
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP})
	user(t, node.Host, server4)
	put(t, l, answerOf(t, webName, dns.TypeTXT, nil, webName+` 30 IN TXT "kernel"`))
	return l, node, node.AddPod("pod")
}

// TestIngressQdisc has another program's ingress qdisc in the place of clsact, on a kernel without tcx: the program is not attached, the
// error has the reason, and the qdisc stays, even if a release attached its filter there.
func TestIngressQdisc(t *testing.T) {
	l, node, pod := onePod(t)
	index := pod.HostLink().Attrs().Index
	node.Host.Run("tc", "qdisc", "add", "dev", pod.HostInterface, "ingress")
	node.Host.Do(func() {
		h := node.Host.Netlink()
		if err := l.clsact(index); !errors.Is(err, ErrPlace) || !strings.Contains(err.Error(), "ingress qdisc") {
			t.Errorf("attached next to an ingress qdisc: %v", err)
		}
		if filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) > 0 {
			t.Errorf("filters %v, %v; want none", filters, err)
		}
		testutil.Must(t, h.FilterReplace(filter(index, l.objects.NeardnsHits.FD(), ways[1])))
		testutil.Must(t, detach(l.folder, index))
		if filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) > 0 {
			t.Errorf("filters %v, %v; want none", filters, err)
		}
	})
	if out := node.Host.Run("tc", "qdisc", "show", "dev", pod.HostInterface); !strings.Contains(out, "qdisc ingress") {
		t.Errorf("the other program's qdisc is gone: %s", out)
	}
}

// TestClsact attaches as on kernels without tcx, next to other programs' filters.
func TestClsact(t *testing.T) {
	l, node, pod := onePod(t)
	index, in := pod.HostLink().Attrs().Index, ways[1]
	node.Host.Do(func() {
		for range 2 {
			testutil.Must(t, l.clsact(index))
		}
		trust(t, l, index)
		wantFrom(t, "kernel", pod, server4, "attached")
		// Another filter after ours gets the packets that go on.
		h := node.Host.Netlink()
		other := filter(index, l.objects.NeardnsHits.FD(), in)
		other.Name, other.Priority, other.Handle = "other", 2, 1
		testutil.Must(t, h.FilterAdd(other))
		wantOthers(t, l, index, "other")
		testutil.Must(t, detach(l.folder, index))
		if filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 {
			t.Errorf("the other filter went, too: %v %v", filters, err)
		}
		// SweepLinks detaches the program without the pins in the BPF file system.
		testutil.Must(t, l.clsact(index))
		for range 2 {
			testutil.Must(t, SweepLinks())
			if filters, err := filtersOf(h, index, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 || filters[0].Attrs().Priority != 2 {
				t.Errorf("after SweepLinks: %v %v", filters, err)
			}
		}
		// A filter before ours might end the processing, or ours might end it for that filter, so ours is not attached.
		first := filter(index, l.objects.NeardnsHits.FD(), in)
		first.Name, first.Handle = "first", 1
		testutil.Must(t, h.FilterAdd(first))
		testutil.WantError(t, l.clsact(index), ErrPlace.Error(), "beside a first one")
		for _, f := range []*netlink.BpfFilter{other, first} {
			testutil.Must(t, h.FilterDel(f))
		}
		testutil.Must(t, l.clsact(index))
		testutil.Must(t, detach(l.folder, index))
		if out := node.Host.Run("tc", "qdisc", "show", "dev", pod.HostInterface); strings.Contains(out, "clsact") {
			t.Errorf("left behind: %s", out)
		}
		wantFrom(t, "user", pod, server4, "detached")
	})
}
