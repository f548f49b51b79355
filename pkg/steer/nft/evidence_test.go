package nft_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// refuse drops what a pod sends to our addresses, in the host's input hook: the shape of an egress policy that allows only
// kube-dns, as Calico and others have it, and of a firewall zone without our ports.
func refuse(r *nftRig, pod *testutil.Pod) (allow func()) {
	r.t.Helper()
	change := func(how string) {
		for _, a := range r.Ours() {
			command := "iptables"
			if a.Is6() {
				command = "ip6tables"
			}
			r.Node.Host.Run(command, "-w", how, "INPUT", "-i", pod.HostInterface, "-d", a.String(), "-j", "DROP")
		}
	}
	change("-A")
	return func() { change("-D") }
}

// clients lists the clients that a pod's queries to each of our addresses make.
func (r *nftRig) clients(pod *testutil.Pod) []steer.Client {
	var out []steer.Client
	for _, a := range r.Ours() {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			out = append(out, steer.Client{Source: pod.Addr(a.Is4()), Protocol: p, Address: a})
		}
	}
	slices.SortFunc(out, steer.Client.Compare)
	return out
}

func suspects(t testing.TB, backend *nft.Nftables) []steer.Client {
	t.Helper()
	list, err := backend.Suspects()
	must(t, err)
	var out []steer.Client
	for _, s := range list {
		out = append(out, s.Client)
	}
	return out
}

// endHolds ends all bypasses, as their timeouts would.
func (r *nftRig) endHolds() {
	r.Node.Host.Run("nft", "flush", "set", "inet", "neardns", "bypass4")
	r.Node.Host.Run("nft", "flush", "set", "inet", "neardns", "bypass6")
}

// A client becomes a suspect: recorded, bypassed, tried, bypassed again, tried and cleared. Another pod is not affected.
func TestEvidence(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		blocked, well := r.Steered("blocked"), r.Steered("well")
		// This test is about the switch, so the pod's own table must not bypass the agent.
		must(t, open(t, blocked.NetNS).Apply(steer.Pod{Redirects: r.Host.Redirects, Always: true}))
		all := append(r.ClusterDNS(), r.Local()...)
		r.Serve()
		allow := refuse(r, blocked)
		r.Want("AGENT", well.NetNS, "well", all...)
		if got, err := r.nft.Unheard(); err != nil || got[steer.UDP] != 0 || got[steer.TCP] != 0 {
			t.Errorf("lost before anybody was refused: %v, %v", got, err)
		}
		r.WantNone(blocked.NetNS, "refused", all...)

		notes, err := r.nft.Notes()
		must(t, err)
		both := append(r.clients(blocked), r.clients(well)...)
		slices.SortFunc(both, steer.Client.Compare)
		order := steer.Client.Compare
		testutil.Equal(t, "delivered", both, slices.SortedFunc(maps.Keys(notes.Delivered), order))
		testutil.Equal(t, "arrived", r.clients(well), slices.SortedFunc(maps.Keys(notes.Arrived), order))
		for c, age := range notes.Arrived {
			if asked := notes.Delivered[c]; age < 0 || asked < 0 || asked > nft.AskedMemory || age > asked+notes.Slack {
				t.Errorf("%s asked %v ago, was heard %v ago, slack %v", c, asked, age, notes.Slack)
			}
		}
		got, err := r.nft.Unheard()
		must(t, err)
		if got[steer.UDP] != int64(len(all)) || got[steer.TCP] < int64(len(all)) {
			t.Errorf("%d addresses refused over each protocol, counted: %v", len(all), got)
		}

		before := generation(t, r.Node.Host)
		for _, c := range r.clients(blocked) {
			must(t, r.Lease.Hold(c, 0))
		}
		testutil.Equal(t, "suspects", r.clients(blocked), suspects(t, r.nft))
		r.Want("KUBEDNS", blocked.NetNS, "held", all...)
		r.Want("AGENT", well.NetNS, "another held", all...)
		if generation(t, r.Node.Host) != before {
			t.Error("a hold costs transactions")
		}

		r.endHolds()
		r.trial(blocked)
		r.Want("KUBEDNS", blocked.NetNS, "tried, still refused", all...)
		r.endHolds()
		allow()
		r.Want("AGENT", blocked.NetNS, "tried, no more refused", all...)
		testutil.Equal(t, "suspects that are left", nil, suspects(t, r.nft))

		c := r.clients(blocked)[0]
		must(t, r.Lease.Hold(c, 0))
		must(t, r.Lease.Hold(c, steer.HoldSteps)) // a client that is bypassed already is bypassed for longer
		list, err := r.nft.Suspects()
		must(t, err)
		if last := steer.Hold(steer.HoldSteps - 1); len(list) != 1 || list[0].Held > last || list[0].Held <= steer.Hold(steer.HoldSteps-2) {
			t.Errorf("a hold beyond the last: %v", list)
		}
		must(t, r.Lease.Release(c))
		if list, err = r.nft.Suspects(); err != nil || len(list) != 1 || list[0].Held != 0 {
			t.Errorf("released: %v, %v", list, err)
		}
		r.Want("AGENT", blocked.NetNS, "released", all...)
		testutil.Equal(t, "suspects after a query that is the trial", nil, suspects(t, r.nft))
		must(t, r.nft.Verify(r.Host))
	})
}

// trial queries each address once over each protocol. If the host's filters still drop a client's queries, exactly its
// first query over UDP is lost; over TCP, the repeated SYN gets through.
func (r *nftRig) trial(pod *testutil.Pod) {
	r.t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, server := range r.Servers() {
		wg.Go(func() {
			answer, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{EDNS: 1232, Timeout: testutil.Silence})
			if err == nil {
				r.t.Errorf("%s: the trial over UDP is answered: %v", server, answer)
			}
			for _, network := range rig.Networks() {
				by(r.t, "KUBEDNS", "%s: after the trial, over %s", server, network)(
					testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, network, testutil.AskOptions{Timeout: testutil.Patience()}))
			}
		})
	}
}

// A bypass is for one source, address and protocol.
func TestHoldIsPerClient(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Serve()
	servers := append(r.ClusterDNS(), r.Local()...)
	for i, a := range r.Ours() {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			c := steer.Client{Source: pod.Addr(a.Is4()), Protocol: p, Address: a}
			must(t, r.Lease.Hold(c, 1))
			for j, server := range servers {
				for _, network := range rig.Networks() {
					want := "AGENT"
					if i == j && network == p.String() {
						want = "KUBEDNS"
					}
					by(t, want, "hold of %s: %s over %s", c, server, network)(
						testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeA, network, testutil.AskOptions{}))
				}
			}
			must(t, r.Lease.Release(c))
			by(t, "AGENT", "release of %s", c)(
				testutil.Ask(pod.NetNS, servers[i], "a.cluster.local", dns.TypeA, p.String(), testutil.AskOptions{}))
		}
	}
}

// If the sets are full, clients are no longer recorded, but the agent still gets their queries, and no client becomes a suspect.
func TestEvidenceWhenFull(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	early, late := r.Steered("early"), r.Steered("late")
	r.Serve()
	r.Want("AGENT", early.NetNS, "empty", r.ClusterDNS()...)
	fill := "add element inet neardns asked4 {"
	source := netip.MustParseAddr("10.9.0.0")
	for range nft.AskedBound - 2 { // the early pod's two are there
		source = source.Next()
		fill += source.String() + " . udp . 169.254.20.11,"
	}
	r.Node.Host.RunInput(strings.TrimSuffix(fill, ",")+" }", "nft", "-f", "-")
	for range 3 {
		r.Want("AGENT", early.NetNS, "full", r.ClusterDNS()...)
		r.Want("AGENT", late.NetNS, "full", r.ClusterDNS()...)
	}
	notes, err := r.nft.Notes()
	must(t, err)
	for c, age := range notes.Arrived {
		if asked, ok := notes.Delivered[c]; !ok || age > asked+notes.Slack {
			t.Errorf("%s: asked %v ago (%v), heard %v ago", c, asked, ok, age)
		}
	}
	if len(notes.Arrived) != 2 || len(notes.Delivered) != nft.AskedBound {
		t.Errorf("%d heard, %d asked", len(notes.Arrived), len(notes.Delivered))
	}
}

// The queries of the node itself and of the prober are not recorded; with node interception, those of pods without a table are.
func TestEvidenceUnderInterception(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP}, func(h *steer.Host) { h.InterceptNode = true })
	plain := r.Pod("plain")
	r.Serve()
	r.Want("AGENT", r.Node.Host, "host process", r.ClusterDNS()...)
	notes, err := r.nft.Notes()
	must(t, err)
	if len(notes.Delivered)+len(notes.Arrived) > 0 {
		t.Errorf("the node's own questions are noted: %v", notes)
	}
	allow := refuse(r, plain)
	r.WantNone(plain.NetNS, "refused", r.ClusterDNS()...)
	notes, err = r.nft.Notes()
	must(t, err)
	if len(notes.Delivered) != 4 || len(notes.Arrived) != 0 {
		t.Errorf("want four asked and none heard: %v", notes)
	}
	for c := range notes.Delivered {
		must(t, r.Lease.Hold(c, 0))
	}
	r.Want("KUBEDNS", plain.NetNS, "held", r.ClusterDNS()...)
	allow()
	r.endHolds()
	r.Want("AGENT", plain.NetNS, "allowed", r.ClusterDNS()...)
}

func TestHoldWithoutASwitch(t *testing.T) {
	testutil.RequireRoot(t)
	ns, backend := node(t, host())
	lease := openLease(t, ns)
	client := steer.Client{Source: addr("10.244.1.9"), Protocol: steer.TCP, Address: redirect4.Steering}
	must(t, lease.Hold(client, 0))
	for what, c := range map[string]steer.Client{
		"families":  {Source: addr("10.244.1.9"), Protocol: steer.UDP, Address: redirect6.Steering},
		"protocol":  {Source: addr("10.244.1.9"), Protocol: 1, Address: redirect4.Steering},
		"no source": {Protocol: steer.UDP, Address: redirect4.Steering},
	} {
		if err := lease.Hold(c, 0); err == nil || errors.Is(err, steer.ErrNoSwitch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, backend.Remove())
	for _, c := range []steer.Client{client, {Source: addr("fd00::9"), Protocol: steer.UDP, Address: redirect6.Steering}} {
		if err := lease.Hold(c, 0); !errors.Is(err, steer.ErrNoSwitch) {
			t.Errorf("hold of %s without a switch: %v", c, err)
		}
	}
	if got, err := backend.Unheard(); err != nil || got[steer.UDP] != 0 {
		t.Errorf("no table: %v, %v", got, err)
	}
	if got, err := backend.Suspects(); err != nil || len(got) != 0 {
		t.Errorf("no table: %v, %v", got, err)
	}
}
