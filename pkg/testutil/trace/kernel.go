package trace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Kernel is a node of network namespaces in one of the arrangements: its rules stand, nobody listens, no lease is held.
type Kernel struct {
	Node    *testutil.Node
	Steered *testutil.Pod // with a pod's own rules
	Plain   *testutil.Pod
	Lease   *steer.Lease
}

// nobodys is how long an answer is awaited that must not come.
const nobodys = 250 * time.Millisecond

// CheckKernel asks the questions of a sample of the cases on the real kernel and fails unless the answers come from where the list
// says: all cases in which a pod, the node itself or a machine beside it opens something in a state that lasts. So the tracer's own
// idea of a kernel is held to one. open makes the node of an arrangement.
func (b Backend) CheckKernel(t *testing.T, open func(t *testing.T, a Arrangement) Kernel) {
	t.Helper()
	cases, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range Arrangements() {
		sample := slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
			_, there := c.Want(b.Name)
			return c.Arrangement.Name != a.Name || !there || !c.sampled()
		})
		if len(sample) == 0 {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			k := open(t, a)
			k.routeBeside(a)
			// Each state of the sockets is made once: to start and stop servers takes longer than to ask them.
			slices.SortStableFunc(sample, func(x, y Case) int { return strings.Compare(x.listener(), y.listener()) })
			listener := "none"
			stop := func() {}
			defer func() { stop() }()
			for _, c := range sample {
				if c.listener() != listener {
					stop()
					listener = c.listener()
					stop = k.listen(t, a, listener)
				}
				for is4, family := range families {
					if err := k.lease(c, is4); err != nil {
						t.Fatalf("%s, %s: %v", c, family, err)
					}
					want, _ := c.Want(b.Name)
					if got := k.ask(t, c, is4); got != answerer(want) {
						t.Errorf("%s, %s: answered by %q, want %q as of %s", c, family, got, answerer(want), want)
					}
					if c.Packet == "udp" {
						k.tracked(t, c, is4, want)
					}
				}
			}
			t.Logf("%d cases in both families", len(sample))
		})
	}
}

// sampled tells the cases whose state can be made at once and lasts.
func (c Case) sampled() bool {
	from := c.From == "pod" && c.Place == string(Prerouting) || c.From == "node" && c.Place == string(Output) ||
		c.From == "beside" && c.Place == string(Prerouting) && c.To != "steering" // its answer comes from another address
	return from && (c.Packet == "udp" || c.Packet == "syn") && c.Before == "" && slices.Contains([]string{"steering", "local", "cluster"}, c.To) &&
		slices.Contains([]string{"", "none", "held", "udp", "tcp", "elsewhere", "withdrawn"}, c.Lease)
}

func (c Case) listener() string {
	if c.Socket == "" {
		return "none"
	}
	return c.Socket
}

// answerer is who answers a question that goes where a result says.
func answerer(result string) string {
	where, _, _ := strings.Cut(strings.NewReplacer(",", " ", ";", " ").Replace(result), " ")
	switch where {
	case "agent", "other", "foreign":
		return strings.ToUpper(where)
	case "nobody":
		return ""
	}
	return "KUBEDNS" // kube-dns by our rules, by kube-proxy's alone, or because nothing of ours touched the question
}

// routeBeside has the machine beside the node send what is for our addresses to the node.
func (k Kernel) routeBeside(a Arrangement) {
	for _, gateway := range k.Node.HostAddrs() {
		for _, ours := range append(a.leased(gateway.Is4()), Address("cluster", gateway.Is4())) {
			// One that is there already is replaced: the neighbour knows the way to Services from the start.
			k.Node.Neighbour.Run("ip", "route", "replace", testutil.Host(ours).String(), "via", gateway.String())
		}
	}
}

// listen starts whoever is bound at our addresses, until stop.
func (k Kernel) listen(t *testing.T, a Arrangement, who string) (stop func()) {
	t.Helper()
	config := testutil.DNSConfig{Name: "AGENT", Transparent: a.transparent()}
	for _, is4 := range []bool{true, false} {
		for _, ours := range a.leased(is4) {
			config.Listen = append(config.Listen, netip.AddrPortFrom(ours, 53))
		}
	}
	switch who {
	case "none":
		return func() {}
	case "other":
		config.Name, config.Transparent = "OTHER", false
	case "foreign":
		config.Name, config.Transparent = "FOREIGN", false
		config.Listen = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:53"), netip.MustParseAddrPort("[::]:53")}
	}
	return testutil.ServeDNS(t, k.Node.Host, config).Stop
}

// lease makes the state of the leases that a case names.
func (k Kernel) lease(c Case, is4 bool) error {
	for _, a := range c.Arrangement.leased(is4) {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			does := k.Lease.Withdraw
			if c.Lease == "held" || c.Lease == p.String() || c.Lease == "elsewhere" && a != Address(c.To, is4) {
				does = k.Lease.Renew
			}
			if err := does(a, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask sends a case's question and says who answers it from the address that was asked, "" for nobody.
func (k Kernel) ask(t *testing.T, c Case, is4 bool) string {
	t.Helper()
	from, server := k.Plain.NetNS, Address(c.To, is4)
	switch {
	case c.From == "node":
		from = k.Node.Host
	case c.From == "beside":
		from = k.Node.Neighbour
	case c.To == "steering": // the pod's own rules give it that
		from, server = k.Steered.NetNS, Address("cluster", is4)
	}
	network, o := "udp", testutil.AskOptions{}
	if c.Packet == "syn" {
		network = "tcp"
	}
	if strings.HasPrefix(c.Nftables, "nobody") {
		o.Timeout = nobodys
	}
	testutil.FlushConntrack(k.Node.Host) // so that entries are this question's
	answer, err := testutil.Ask(from, netip.AddrPortFrom(server, 53), "a.cluster.local", dns.TypeTXT, network, o)
	if err != nil {
		return ""
	}
	return answer.Who
}

// tracked compares what the question left in connection tracking with the case. What is for nobody may be answered by an error.
func (k Kernel) tracked(t *testing.T, c Case, is4 bool, want string) {
	t.Helper()
	if strings.HasPrefix(want, "nobody") {
		return
	}
	has := slices.ContainsFunc(testutil.Conntrack(k.Node.Host), func(line string) bool { return strings.HasPrefix(line, "udp") })
	if wants := answerer(want) == "KUBEDNS" || strings.Contains(want, "tracked") && !strings.Contains(want, "untracked"); has != wants {
		t.Errorf("%s, %s: tracked: %v, want %v as of %s: %v", c, families[is4], has, wants, want, testutil.Conntrack(k.Node.Host))
	}
}
