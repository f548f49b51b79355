//go:build cutoff

package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/cutoff"
	"github.com/neardns/neardns/pkg/testutil"
)

// What pods see when a living agent cannot do its work, or the world around it changes: one program is cut off from another, and
// pods are to be answered soon as if neardns did not exist. Each cell is a node of its own on which a pod queries over UDP and TCP,
// in IPv4 and IPv6, for names that the cache holds and for new ones, from before the cut until all is well for good.

// way is how a node's pods come to the cache.
type way string

const (
	waySteered   way = "steered"
	wayLocal     way = "names 169.254.20.10"
	wayIntercept way = "node interception"
)

func ways() []way { return []way{waySteered, wayLocal, wayIntercept} }

// cut is one way to be cut off.
type cut struct {
	name  string // who is cut off from whom
	limit time.Duration
	zone  string
	do    func(t *testing.T, n *node, p *pod)
	// named: not tried where pods name our address by themselves. What is dropped is what they query then, with us or without.
	named bool
}

func cuts() []cut {
	each := func(n *node, f func(is4 bool, iptables string)) {
		for _, a := range n.ClusterDNS() {
			f(a.Is4(), map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()])
		}
	}
	family := map[bool]string{true: "ip", false: "ip6"}
	ours := func(is4 bool) string {
		return map[bool]string{true: "{ 169.254.20.10, 169.254.20.11 }", false: "{ fd00:90de:d95::a, fd00:90de:d95::b }"}[is4]
	}
	return []cut{
		{"agent ↛ kube-dns (the host's OUTPUT)", cutoff.Lease, "", func(_ *testing.T, n *node, _ *pod) {
			each(n, func(is4 bool, iptables string) {
				kube := n.KubeDNSAddrs()[map[bool]int{true: 0, false: 1}[is4]].String()
				for _, proto := range []string{"udp", "tcp"} {
					n.Host.Run(iptables, "-w", "-I", "OUTPUT", "-d", kube, "-p", proto, "--dport", "53", "-j", "DROP")
				}
			})
		}, false},
		{"agent ↛ kube-dns (no route from the host)", cutoff.Lease, "", func(_ *testing.T, n *node, p *pod) {
			// The host's own queries have no route; what is forwarded has one.
			each(n, func(is4 bool, _ string) {
				flag := map[bool]string{true: "-4", false: "-6"}[is4]
				n.Host.Run("ip", flag, "rule", "add", "pref", "10", "iif", "lo", "ipproto", "udp", "dport", "53", "unreachable")
				n.Host.Run("ip", flag, "rule", "add", "pref", "10", "iif", "lo", "ipproto", "tcp", "dport", "53", "unreachable")
			})
		}, false},
		{"kube-dns ↛ node (its policy admits pods alone)", cutoff.Evidence, "", func(_ *testing.T, n *node, _ *pod) {
			each(n, func(is4 bool, iptables string) {
				for _, proto := range []string{"udp", "tcp"} {
					n.KubeDNS.Run(iptables, "-w", "-A", "INPUT", "-p", proto, "--dport", "53", "!", "-s", n.PodRange(is4).String(), "-j", "DROP")
				}
			})
		}, false},
		{"agent ↛ its resolver outside, kube-dns ↛ nobody", cutoff.Lease, "example.org.", func(_ *testing.T, n *node, _ *pod) {
			for _, a := range n.ExternalAddrs() {
				n.Host.Run(map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()], "-w", "-I", "OUTPUT", "-d", a.String(), "-j", "DROP")
			}
		}, false},
		{"pod ↛ agent, dropped at its link", cutoff.Evidence, "", func(_ *testing.T, n *node, p *pod) { n.refuseAtLink(p) }, true},
		{"pod ↛ agent, dropped in INPUT", cutoff.Evidence, "", func(_ *testing.T, n *node, p *pod) { n.refuse(p) }, false},
		{"agent ↛ pod, answers dropped in OUTPUT", cutoff.Evidence, "", func(_ *testing.T, n *node, p *pod) {
			each(n, func(is4 bool, _ string) {
				n.Host.Run("nft", "add", "table", "inet", "egress")
				n.Host.Run("nft", "add", "chain", "inet", "egress", "out", "{ type filter hook output priority 0; }")
				n.Host.Run("nft", "add", "rule", "inet", "egress", "out", family[is4], "saddr", ours(is4), family[is4], "daddr", p.addr(is4).String(), "drop")
			})
		}, true},
		{"kube-proxy gone, others translate; agent dead", cutoff.Evidence, "", func(_ *testing.T, n *node, p *pod) {
			n.replaceProxy(p)
			n.agent.Kill()
		}, true},
		{"table gone, agent dead, watch alive", cutoff.Lease, "", func(_ *testing.T, n *node, _ *pod) {
			n.startWatch()
			n.agent.Kill()
			n.Host.Run("nft", "delete", "table", "inet", "neardns")
		}, false},
		{"table gone, agent and watch dead", cutoff.Evidence, "", func(_ *testing.T, n *node, _ *pod) {
			n.agent.Kill()
			n.Host.Run("nft", "delete", "table", "inet", "neardns")
		}, true},
		{"agent dead", cutoff.None, "", func(_ *testing.T, n *node, _ *pod) { n.agent.Kill() }, false},
		{"agent hung", cutoff.Lease, "", func(_ *testing.T, n *node, _ *pod) { n.agent.Stop() }, false},
	}
}

// replaceProxy takes kube-proxy's rules away and has the cluster DNS address translated at the links instead, statelessly, as
// what stands in kube-proxy's place may do it: the pod's own queries are answered, those of the host are not.
func (n *node) replaceProxy(p *pod) {
	n.t.Helper()
	n.Proxy.Remove()
	rules := "table netdev replacement {\n"
	for _, hook := range []struct{ link, match, set string }{{p.hostLink(n), "daddr", "dport"}, {"kubedns0", "saddr", "sport"}} {
		rules += fmt.Sprintf("chain %s { type filter hook ingress device %s priority -400;\n", hook.match, hook.link)
		for i, service := range n.ClusterDNS() {
			from, to := service, n.KubeDNSAddrs()[i]
			if hook.match == "saddr" {
				from, to = to, from
			}
			for _, proto := range []string{"udp", "tcp"} {
				rules += fmt.Sprintf("%[1]s %[2]s %[3]s %[4]s %[5]s 53 %[1]s %[2]s set %[6]s\n", ipFamily(from), hook.match, from, proto, hook.set, to)
			}
		}
		rules += "}\n"
	}
	n.Host.RunInput(rules+"}\n", "nft", "-f", "-")
}

func ipFamily(a netip.Addr) string { return map[bool]string{true: "ip", false: "ip6"}[a.Is4()] }

// run makes the cell's node, cuts, and looks.
func (c cut) run(t *testing.T, w way) cutoff.Cell {
	t.Helper()
	s := setup{families: testutil.Dual, proxy: testutil.IPTables, external: true}
	external := quoted([]netip.Addr{netip.MustParseAddr("198.51.100.53")})
	s.config = "upstreams: {external: [" + external[0] + "]}\n"
	var n *node
	if w == wayIntercept {
		n = intercepting(t, s)
	} else {
		n = newNode(t, s)
	}
	var p *pod
	at := n.ClusterDNS()
	switch w {
	case waySteered:
		p = n.addPod(nil)
	case wayLocal:
		p, at = n.addOldPod(), n.locals()
	case wayIntercept:
		p = n.addOldPod()
	}
	n.startAgent()
	fresh := freshName
	if c.zone != "" {
		fresh = func() string { return strings.Replace(freshName(), "default.svc.cluster.local.", c.zone, 1) }
	}
	return cutoff.Watch(t, p.NetNS, fresh, func() { c.do(t, n, p) }, at...)
}

// TestCutOff tries every cell, and draws the table. It is what `make cutoff` runs.
func TestCutOff(t *testing.T) {
	t.Parallel()
	all := cuts()
	var rows, columns []string
	for _, w := range ways() {
		columns = append(columns, string(w))
	}
	cells := make([][]cutoff.Cell, len(all))
	t.Run("cells", func(t *testing.T) {
		for i, c := range all {
			rows = append(rows, c.name)
			cells[i] = make([]cutoff.Cell, len(columns))
			for j, w := range ways() {
				t.Run(c.name+"/"+string(w), func(t *testing.T) {
					t.Parallel()
					cell := cutoff.Cell{NotTried: true}
					if !c.named || w != wayLocal {
						cell = c.run(t, w)
					}
					cells[i][j] = cell
					t.Logf("%s; last lost: %s", cell, cell.Worst)
					if !cell.Within(c.limit) {
						t.Errorf("pods are not answered as without neardns within %v: %s; last lost: %s", c.limit, cell, cell.Worst)
					}
				})
			}
		}
	})
	cutoff.Draw(t, "steering", rows, columns, cells)
}
