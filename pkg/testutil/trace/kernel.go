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

// Kernel is a node of network namespaces in one of the arrangements: it has the rules, no listener and no lease.
type Kernel struct {
	Node    *testutil.Node
	Steered *testutil.Pod // with a pod's own rules
	Plain   *testutil.Pod
	Lease   *steer.Lease
}

// silence is how long an answer is awaited that must not come.
const silence = 250 * time.Millisecond

// CheckKernel sends the queries of some cases (sampled) on a real kernel, and fails the test unless the servers that the list names answer.
// So it compares the tracer's model of the kernel with a real one. open makes the node of an arrangement.
func (b Backend) CheckKernel(t *testing.T, open func(t *testing.T, a Arrangement) Kernel) {
	t.Helper()
	cases, err := Cases()
	testutil.Must(t, err)
	for _, a := range Arrangements() {
		var fresh, kept []Case
		for _, c := range cases {
			if _, there := c.Want(b.Name); c.Arrangement.Name != a.Name || !there || !c.sampled() {
				continue
			}
			if c.Packet == "ack" {
				kept = append(kept, c)
			} else {
				fresh = append(fresh, c)
			}
		}
		if len(fresh) == 0 {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			k := open(t, a)
			k.routeLAN(a)
			for _, c := range kept {
				for is4 := range families {
					want, _ := c.Want(b.Name)
					k.connection(t, c, is4, want)
				}
			}
			// Make each state of the sockets once: to start and stop servers takes longer than to query them.
			slices.SortStableFunc(fresh, func(x, y Case) int { return strings.Compare(x.listener(), y.listener()) })
			listener := "none"
			stop := func() {}
			defer func() { stop() }()
			for _, c := range fresh {
				if c.listener() != listener {
					stop()
					listener = c.listener()
					stop = k.listen(t, a, listener)
				}
				for is4 := range families {
					want, _ := c.Want(b.Name)
					k.query(t, c, is4, want)
				}
			}
			t.Logf("%d queries and %d connections in both families", len(fresh), len(kept))
		})
	}
}

// query sends a case's query, and checks which server answers and, over UDP, whether the query is tracked.
func (k Kernel) query(t *testing.T, c Case, is4 bool, want string) {
	t.Helper()
	if err := k.lease(c, is4, c.Lease); err != nil {
		t.Fatalf("%s, %s: %v", c, families[is4], err)
	}
	if c.Packet == "udp" {
		testutil.FlushConntrack(k.Node.Host) // so that entries are this query's
	}
	if got := k.send(t, c, is4); got != answerer(want) {
		t.Errorf("%s, %s: answered by %q, want %q as of %s", c, families[is4], got, answerer(want), want)
	}
	if c.Packet == "udp" {
		k.tracked(t, c, is4, want)
	}
}

// connection opens a TCP connection in the state that the column before names, and sends a query over it in the case's own state. The
// connection goes on if its packets still go to the program that accepted it; any other program resets it.
func (k Kernel) connection(t *testing.T, c Case, is4 bool, want string) {
	t.Helper()
	opener, lease, listener := "KUBEDNS", "", "none"
	if c.Before == "delivered" {
		opener, lease, listener = "AGENT", "held", "bound"
	}
	stop := k.listen(t, c.Arrangement, listener)
	defer func() { stop() }()
	if err := k.lease(c, is4, lease); err != nil {
		t.Fatalf("%s, %s: %v", c, families[is4], err)
	}
	from, server := k.ends(c, is4)
	conn, err := testutil.Dial(from, "tcp", server, testutil.AskOptions{})
	if err != nil {
		t.Errorf("%s, %s: %v", c, families[is4], err)
		return
	}
	defer conn.Close()
	if answer, err := conn.Ask("a.cluster.local", dns.TypeTXT); err != nil || answer.Who != opener {
		t.Errorf("%s, %s: opened to %v, %v, not to %s", c, families[is4], answer, err, opener)
	}
	if now := strings.Replace(c.listener(), "established", "bound", 1); now != listener {
		stop()
		stop = k.listen(t, c.Arrangement, now)
	}
	if err := k.lease(c, is4, c.Lease); err != nil {
		t.Fatalf("%s, %s: %v", c, families[is4], err)
	}
	answer, err := conn.Ask("a.cluster.local", dns.TypeTXT)
	if goes := answerer(want) == opener; (err == nil && answer.Who == opener) != goes {
		t.Errorf("%s, %s: goes on: %v, want %v as of %s: %v, %v", c, families[is4], !goes, goes, want, answer, err)
	}
}

// sampled reports whether CheckKernel tries a case: a pod, the node itself or a machine on its network sends a query, and the case's state
// can be made at once and lasts.
func (c Case) sampled() bool {
	who := c.From == "pod" && c.Place == string(Prerouting) || c.From == "node" && c.Place == string(Output) ||
		c.From == "lan" && c.Place == string(Prerouting) && c.To != "steering" // its answer comes from another address
	opens := c.Before == "" && (c.Packet == "udp" || c.Packet == "syn")
	goesOn := c.Packet == "ack" && (c.Before == "fell back" || c.Before == "delivered") && c.Socket != "request"
	return who && (opens || goesOn) && slices.Contains([]string{"steering", "local", "cluster"}, c.To) &&
		slices.Contains([]string{"", "none", "held", "udp", "tcp", "elsewhere", "withdrawn"}, c.Lease)
}

func (c Case) listener() string {
	if c.Socket == "" {
		return "none"
	}
	return c.Socket
}

// answerer names the server that answers a query with a result of the list.
func answerer(result string) string {
	where, _, _ := strings.Cut(strings.NewReplacer(",", " ", ";", " ").Replace(result), " ")
	switch where {
	case "agent", "other", "foreign":
		return strings.ToUpper(where)
	case "closed":
		return ""
	}
	return "KUBEDNS" // kube-dns by our rules, by kube-proxy's alone, or because nothing of ours touched the query
}

// routeLAN makes the other machine on the node's network send packets for our addresses to the node.
func (k Kernel) routeLAN(a Arrangement) {
	for _, gateway := range k.Node.HostAddrs() {
		for _, ours := range append(a.leased(gateway.Is4()), Address("cluster", gateway.Is4())) {
			// One that is there already is replaced: the neighbour knows the way to Services from the start.
			k.Node.Neighbour.Run("ip", "route", "replace", testutil.Host(ours).String(), "via", gateway.String())
		}
	}
}

// listen starts the servers that are bound at our addresses, until stop.
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

// lease makes a state of the leases.
func (k Kernel) lease(c Case, is4 bool, state string) error {
	for _, a := range c.Arrangement.leased(is4) {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			does := k.Lease.Withdraw
			if state == "held" || state == p.String() || state == "elsewhere" && a != Address(c.To, is4) {
				does = k.Lease.Renew
			}
			if err := does(a, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// ends are the client's netns of a case's query and the address to query.
func (k Kernel) ends(c Case, is4 bool) (*testutil.NetNS, netip.AddrPort) {
	server := netip.AddrPortFrom(Address(c.To, is4), 53)
	switch {
	case c.From == "node":
		return k.Node.Host, server
	case c.From == "lan":
		return k.Node.Neighbour, server
	case c.To == "steering": // the pod's own rules give it that
		return k.Steered.NetNS, netip.AddrPortFrom(Address("cluster", is4), 53)
	}
	return k.Plain.NetNS, server
}

// send sends a case's query and names the server that answers it from the queried address; "" if none does.
func (k Kernel) send(t *testing.T, c Case, is4 bool) string {
	t.Helper()
	network, o := "udp", testutil.AskOptions{}
	if c.Packet == "syn" {
		network = "tcp"
	}
	if strings.HasPrefix(c.Nftables, "closed") {
		o.Timeout = silence
	}
	from, server := k.ends(c, is4)
	answer, err := testutil.Ask(from, server, "a.cluster.local", dns.TypeTXT, network, o)
	if err != nil {
		return ""
	}
	return answer.Who
}

// tracked compares what the query left in connection tracking with the case. A query to a closed port may be answered by an error.
func (k Kernel) tracked(t *testing.T, c Case, is4 bool, want string) {
	t.Helper()
	if strings.HasPrefix(want, "closed") {
		return
	}
	has := slices.ContainsFunc(testutil.Conntrack(k.Node.Host), func(line string) bool { return strings.HasPrefix(line, "udp") })
	if wants := answerer(want) == "KUBEDNS" || strings.Contains(want, "tracked") && !strings.Contains(want, "untracked"); has != wants {
		t.Errorf("%s, %s: tracked: %v, want %v as of %s: %v", c, families[is4], has, wants, want, testutil.Conntrack(k.Node.Host))
	}
}
