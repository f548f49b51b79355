package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Numbers of the hairpin's routing tables, and priorities of its routing rules. The priorities are before those of CNIs that
// route pods by source address (AWS's are 512 and later). Rules and routes have protocol kernel, because systemd-networkd
// removes those of other protocols whenever it starts (networkd.conf(5), ManageForeignRoutingPolicyRules=,
// ManageForeignRoutes=).
const (
	hairpinTable = 5353 // routing table: the cluster DNS addresses are reached by HairpinOut
	answerTable  = 5354 // routing table: a default route by HairpinIn, for answers to pods

	filterRule = 91 // rule for firewalls that look up the route to a packet's source: pods are reachable by HairpinIn, too
	answerRule = 92 // rule that routes kube-dns's answers back into the hairpin if their queries came through it
	// rule that looks up local addresses first: an address that IPVS has on a link must not be routed into the hairpin, even if
	// another program moved the kernel's own rule back
	localRule = 93
	// rule that routes marked packets of the node itself, which are to go to kube-dns, into the hairpin; before ownRule
	markedRule = 94
	ownRule    = 95 // rule that routes all other packets of the node itself to a cluster DNS address by the main table
	// rule that rejects packets from the hairpin that kube-proxy did not translate, so that they do not enter it again
	backRule    = 96
	throughRule = 97 // rule that routes packets to a cluster DNS address into the hairpin, by hairpinTable
	loopRule    = 98 // rule that rejects packets to HairpinSource that belong to no connection, because they would loop

	protocol = unix.RTPROT_KERNEL
)

// routingRule has those fields of a routing rule that neardns's rules use.
type routingRule struct {
	family, priority int
	iif, oif         string
	dst              netip.Prefix // invalid means all destinations
	mark, mask       uint32
	table            int
	action, protocol uint8
	more             bool // whether the rule also has a field that neardns's rules never have
}

func (r routingRule) String() string {
	words := []string{fmt.Sprint("routing rule ", r.priority)}
	if r.dst.IsValid() {
		words = append(words, "to "+r.dst.String())
	}
	if r.iif != "" {
		words = append(words, "iif "+r.iif)
	}
	if r.mark != 0 {
		words = append(words, fmt.Sprintf("fwmark %#x", r.mark))
	}
	if r.action == unix.FR_ACT_TO_TBL {
		words = append(words, fmt.Sprint("lookup ", r.table))
	}
	return strings.Join(words, " ")
}

// covers reports whether a rule applies to packets to a.
func (r routingRule) covers(a netip.Addr) bool { return !r.dst.IsValid() || r.dst.Contains(a) }

// hasSingleAddress reports whether a rule applies to one destination address only.
func (r routingRule) hasSingleAddress() bool { return r.dst.IsValid() && r.dst.IsSingleIP() }

// isOurs reports whether neardns made this rule, for any cluster DNS address.
func (r routingRule) isOurs() bool {
	is4 := r.family == unix.AF_INET
	a := steer.HairpinSource(is4) // for the rules that are not for a cluster DNS address
	if r.hasSingleAddress() {
		a = r.dst.Addr()
	}
	return slices.Contains(wantedRules(is4, []netip.Addr{a}, true), r)
}

func wantedRules(is4 bool, clusterDNS []netip.Addr, own bool) []routingRule {
	if len(clusterDNS) == 0 {
		return nil
	}
	to := func(a netip.Addr, priority, table int) routingRule {
		r := routingRule{family: family(is4), priority: priority, table: table, action: unix.FR_ACT_TO_TBL, protocol: protocol}
		if a.IsValid() {
			r.dst = netip.PrefixFrom(a, a.BitLen())
		}
		return r
	}
	filter, answer := to(netip.Addr{}, filterRule, answerTable), to(netip.Addr{}, answerRule, answerTable)
	filter.oif = steer.HairpinIn
	answer.mark, answer.mask = steer.AnswerMark, steer.MarkMask
	loop := to(steer.HairpinSource(is4), loopRule, 0)
	loop.iif, loop.action = steer.HairpinOut, unix.FR_ACT_UNREACHABLE
	out := []routingRule{filter, answer, loop}
	for _, a := range clusterDNS {
		marked, mine, back := to(a, markedRule, hairpinTable), to(a, ownRule, unix.RT_TABLE_MAIN), to(a, backRule, 0)
		marked.iif, marked.mark, marked.mask = "lo", steer.OwnMark, 0xffffffff
		mine.iif = "lo"
		back.iif, back.action = steer.HairpinIn, unix.FR_ACT_UNREACHABLE
		out = append(out, to(a, localRule, unix.RT_TABLE_LOCAL), mine, back, to(a, throughRule, hairpinTable))
		if own {
			out = append(out, marked)
		}
	}
	return out
}

// rules adds the missing routing rules for these addresses. It removes neardns's rules for other addresses, and every other rule
// with one of neardns's priorities that is for one of these addresses alone. If another program's rule with such a priority applies
// to more, rules leaves it and returns an error that names it.
func (t *Hairpin) rules(is4 bool, clusterDNS []netip.Addr, own bool) (changed bool, err error) {
	have, err := t.listRules(family(is4))
	if err != nil {
		return false, err
	}
	want := wantedRules(is4, clusterDNS, own)
	about := func(r routingRule) bool { return slices.ContainsFunc(clusterDNS, r.covers) }
	var strangers []error
	for _, h := range have {
		switch {
		case h.priority < filterRule || h.priority > loopRule || slices.Contains(want, h.routingRule):
			continue
		case h.isOurs(), h.hasSingleAddress() && about(h.routingRule):
			// Remove them before adding ours: of two rules that differ only in their protocol, the kernel accepts one.
		case about(h.routingRule):
			strangers = append(strangers, fmt.Errorf("%s of another program applies to neardns's packets: give it a priority outside %d to %d",
				h.routingRule, filterRule, loopRule))
			continue
		default:
			continue
		}
		if err := t.deleteRule(h); err != nil {
			return changed, err
		}
		changed = true
	}
	for _, w := range want {
		if slices.ContainsFunc(have, func(h kernelRule) bool { return h.routingRule == w }) {
			continue
		}
		if err := t.nl.RuleAdd(w.netlink()); err != nil && !errors.Is(err, unix.EEXIST) {
			return changed, fmt.Errorf("add %s: %w", w, err)
		}
		changed = true
	}
	return changed, errors.Join(strangers...)
}

func (r routingRule) netlink() *netlink.Rule {
	out := netlink.NewRule()
	out.Priority, out.Family, out.IifName, out.OifName = r.priority, r.family, r.iif, r.oif
	out.Table, out.Type, out.Protocol = r.table, r.action, r.protocol
	if r.dst.IsValid() {
		out.Dst = hostnet.HostNet(r.dst.Addr())
	}
	if r.mark != 0 {
		out.Mark, out.Mask = r.mark, &r.mask
	}
	return out
}

// kernelRule is a routing rule in the kernel, with the netlink message that describes it.
type kernelRule struct {
	routingRule
	message []byte
}

// listRules reads the routing rules of an IP family. If the kernel was booted without the family (ipv6.disable=1), there are
// none. It parses the messages itself, because the netlink library does not return a rule's action.
func (t *Hairpin) listRules(family int) (out []kernelRule, err error) {
	err = hostnet.InNetNS(t.nsFD, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(family))
		messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		} else if err != nil {
			return fmt.Errorf("list routing rules: %w", err)
		}
		for _, m := range messages {
			r, err := parseRule(m)
			if err != nil {
				return fmt.Errorf("list routing rules: %w", err)
			}
			out = append(out, kernelRule{r, m})
		}
		return nil
	})
	return out, err
}

var errShort = errors.New("the kernel's answer is too short")

// parseRule parses a struct fib_rule_hdr, which has the layout of rtmsg, and its attributes.
func parseRule(m []byte) (routingRule, error) {
	if len(m) < unix.SizeofRtMsg {
		return routingRule{}, errShort
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil {
		return routingRule{}, err
	}
	h := nl.DeserializeRtMsg(m)
	r := routingRule{family: int(h.Family), table: int(h.Table), action: h.Type, more: h.Flags&netlink.FibRuleInvert != 0 || h.Tos != 0}
	for _, a := range attrs {
		number := func() uint32 {
			if len(a.Value) < 4 {
				return 0
			}
			return nl.NativeEndian().Uint32(a.Value)
		}
		name := func() string { return strings.TrimRight(string(a.Value), "\x00") }
		switch a.Attr.Type {
		case nl.FRA_PRIORITY:
			r.priority = int(number())
		case nl.FRA_IIFNAME:
			r.iif = name()
		case nl.FRA_OIFNAME:
			r.oif = name()
		case nl.FRA_TABLE:
			r.table = int(number())
		case nl.FRA_FWMARK:
			r.mark = number()
		case nl.FRA_FWMASK:
			r.mask = number()
		case nl.FRA_DST:
			if addr, ok := netip.AddrFromSlice(a.Value); ok {
				r.dst = netip.PrefixFrom(addr, int(h.Dst_len))
			}
		case nl.FRA_PROTOCOL:
			if len(a.Value) > 0 {
				r.protocol = a.Value[0]
			}
		case nl.FRA_SUPPRESS_PREFIXLEN, nl.FRA_SUPPRESS_IFGROUP:
			r.more = r.more || number() != 0xffffffff
		default:
			r.more = true
		}
	}
	if r.action != unix.FR_ACT_TO_TBL {
		r.table = 0
	}
	return r, nil
}

// deleteRule deletes a routing rule by the message with which the kernel described it, so that no similar rule is deleted
// instead.
func (t *Hairpin) deleteRule(r kernelRule) error {
	err := hostnet.InNetNS(t.nsFD, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_DELRULE, unix.NLM_F_ACK)
		req.AddRawData(r.message)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", r.routingRule, err)
	}
	return nil
}

// routes adds the missing routes: in hairpinTable to the cluster DNS addresses by HairpinOut, in answerTable to all addresses by
// HairpinIn, and in the main table to HairpinSource by HairpinIn.
func (t *Hairpin) routes(is4 bool, clusterDNS []netip.Addr) (changed bool, err error) {
	type route struct {
		link  string
		dst   *net.IPNet
		table int
	}
	bits := steer.HairpinSource(is4).BitLen()
	all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	want := []route{{steer.HairpinIn, hostnet.HostNet(steer.HairpinSource(is4)), unix.RT_TABLE_MAIN}, {steer.HairpinIn, all, answerTable}}
	for _, a := range clusterDNS {
		want = append(want, route{steer.HairpinOut, hostnet.HostNet(a), hairpinTable})
	}
	for _, w := range want {
		l, err := t.nl.LinkByName(w.link)
		if err != nil {
			return changed, err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: w.dst, Table: w.table, Protocol: protocol, Scope: netlink.SCOPE_LINK}
		if !is4 {
			r.Scope = netlink.SCOPE_UNIVERSE // IPv6 routes have none
		}
		const same = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_DST | netlink.RT_FILTER_OIF | netlink.RT_FILTER_PROTOCOL
		have, err := t.nl.RouteListFiltered(family(is4), r, same)
		if err != nil {
			return changed, fmt.Errorf("list routes: %w", err)
		}
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return h.Type == unix.RTN_UNICAST && len(h.MultiPath) == 0 }) {
			continue
		}
		if err := t.nl.RouteReplace(r); err != nil {
			return changed, fmt.Errorf("add route to %s: %w", w.dst, err)
		}
		changed = true
	}
	return changed, nil
}
