package trace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// clientPort is the client's port.
const clientPort = 40000

// run traces one case in one IP family. The clock begins at zero and the sets are empty; then come the events of the column before, the
// state of the column lease, and the packet. Packets make each state, as on a node, so that the rules that fill the sets are tried, too.
type run struct {
	c     Case
	is4   bool
	words map[string]netip.Addr
	world *World
	rules Rules
}

// Run traces a case in one IP family and returns where its packet goes. It leaves out the rule with the key without; "" leaves out none.
func (c Case) Run(program Program, without string, is4 bool) (string, error) {
	return c.run(program, without, is4, nil)
}

func (c Case) run(program Program, without string, is4 bool, took map[string]bool) (string, error) {
	r := &run{c: c, is4: is4, words: addresses(is4), rules: program.Start(without)}
	r.world = &World{routes: routes(r.words), took: took}
	if !c.OfPod() { // kube-proxy is the host's
		r.world.Services = []netip.Addr{r.words["cluster"], r.words["second"]}
	}
	p, err := r.packet()
	if err != nil {
		return "", err
	}
	for event := range strings.SplitSeq(c.Before, ";") {
		if event = strings.TrimSpace(event); event == "" {
			continue
		}
		if err := r.happen(event, p); err != nil {
			return "", fmt.Errorf("before %q: %w", event, err)
		}
	}
	if err := r.lease(p); err != nil {
		return "", err
	}
	return r.result(p)
}

// OfPod reports whether the case is about a pod's own rules.
func (c Case) OfPod() bool { return strings.HasPrefix(c.Place, "pod ") }

// hooks returns the netfilter hooks that the case's packet passes.
func (r *run) hooks() ([]Hook, error) {
	switch r.c.Place {
	case "pod out":
		return []Hook{Output, Postrouting}, nil
	case "pod in":
		return []Hook{Prerouting, Input}, nil
	case "through":
		return []Hook{Prerouting, Forward, Postrouting}, nil
	case string(Prerouting), string(Input), string(Forward), string(Output), string(Postrouting):
		return []Hook{Hook(r.c.Place)}, nil
	}
	return nil, fmt.Errorf("no place is called %q", r.c.Place)
}

// packet returns the case's packet as it arrives at the first hook.
func (r *run) packet() (Packet, error) {
	var p Packet
	words := strings.Fields(r.c.Packet)
	if len(words) == 0 {
		return p, fmt.Errorf("no packet")
	}
	kind, words := words[0], words[1:]
	server := uint16(53)
	answer := len(words) > 0 && words[0] == "answer"
	if answer {
		words = words[1:]
	}
	if len(words) > 0 {
		port, err := strconv.ParseUint(words[0], 10, 16)
		if err != nil {
			return p, fmt.Errorf("packet %q: %w", r.c.Packet, err)
		}
		server = uint16(port)
	}
	flags := map[string]byte{"syn": SYN, "ack": ACK, "syn-ack": SYN | ACK, "rst": RST | ACK}
	p.Protocol, p.Flags, p.Later = steer.TCP, flags[kind], kind == "fragment"
	if _, tcp := flags[kind]; !tcp { // a fragment is UDP's: large answers over TCP come in segments
		p.Protocol = steer.UDP
		if kind != "udp" && kind != "fragment" {
			return p, fmt.Errorf("no packet is called %q", r.c.Packet)
		}
	}
	p.SrcPort, p.DstPort = clientPort, server
	if answer {
		p.SrcPort, p.DstPort = p.DstPort, p.SrcPort
	}
	var err error
	if p.Socket, err = r.socket(r.c.Socket); err != nil {
		return p, err
	}
	return p, r.ends(&p)
}

// ends fills in addresses and links. An address comes by its own link unless the case names another with "by".
func (r *run) ends(p *Packet) error {
	from, in, _ := strings.Cut(r.c.From, " by ")
	to, out, _ := strings.Cut(r.c.To, " by ")
	from, marked, _ := strings.Cut(from, ", ")
	switch marked {
	case "":
	case "marked for the turn":
		p.Mark = steer.OwnMark
	case "marked as the turn's":
		p.Mark = steer.AnswerMark
	default:
		return fmt.Errorf("nothing is called %q", marked)
	}
	switch from { // who sends from the node itself
	case "agent":
		from, p.Mark, p.Root, p.Secret = "node", steer.Mark, true, Secret
	case "agent's query": // to its upstream
		from, p.Mark, p.Root = "node", steer.Mark, true
	case "another's agent":
		from, p.Mark, p.Root, p.Secret = "node", steer.Mark, true, Secret+1
	case "no mark":
		from, p.Root, p.Secret = "node", true, Secret
	case "no root":
		from, p.Mark, p.Secret = "node", steer.Mark, Secret
	}
	var known bool
	if p.Src, known = r.words[from]; !known {
		return fmt.Errorf("no address is called %q", from)
	}
	if p.Dst, known = r.words[to]; !known {
		return fmt.Errorf("no address is called %q", to)
	}
	for _, link := range []string{in, out} {
		if link != "" && r.world.Index(link) == 0 {
			return fmt.Errorf("no link is called %q", link)
		}
	}
	if in == "" {
		in = r.world.Route(p.Src)
	}
	if out == "" {
		out = r.world.Route(p.Dst)
	}
	switch r.c.Place {
	case string(Prerouting), string(Input):
		p.In = in
	case string(Forward), "through":
		p.In, p.Out = in, out
	case string(Output), string(Postrouting):
		p.Out = out
	case "pod in":
		p.In = uplink
	}
	return nil
}

// socket reads the word for what a look-up finds.
func (r *run) socket(word string) (Socket, error) {
	agent := Socket{Owner: "agent", Transparent: r.c.Arrangement.transparent()}
	switch word {
	case "", "none":
		return Socket{}, nil
	case "bound", "established":
		return agent, nil
	case "request":
		agent.Request = true
		return agent, nil
	case "foreign": // bound to all addresses
		return Socket{Owner: "foreign", Wildcard: true}, nil
	case "other", "other established": // another program's, bound to this very address
		return Socket{Owner: "other"}, nil
	}
	return Socket{}, fmt.Errorf("no socket is called %q", word)
}

// opening returns the packet with which the connection of the case's packet began.
func opening(p Packet) Packet {
	if p.Protocol == steer.TCP {
		p.Flags = SYN
	}
	return p
}

// reverse returns the query of the answer p: source and destination are exchanged, and a TCP packet becomes a SYN.
func reverse(p Packet) Packet {
	p = opening(p)
	p.Src, p.Dst, p.SrcPort, p.DstPort, p.In, p.Out = p.Dst, p.Src, p.DstPort, p.SrcPort, p.Out, p.In
	return p
}

// entry returns the hooks that a query passes before its destination is decided.
func (r *run) entry(p Packet) []Hook {
	switch {
	case r.c.Place == "pod out", r.c.Place == "pod in":
		return []Hook{Output, Postrouting}
	case p.Src == r.words["node"]:
		return []Hook{Output}
	}
	return []Hook{Prerouting}
}

// pass passes a packet through some hooks. Only its effect on sets and connections matters, not where it goes.
func (r *run) pass(p Packet, hooks ...Hook) error {
	for _, h := range hooks {
		if err := r.rules.Pass(h, &p, r.world); err != nil {
			return err
		}
	}
	return nil
}

// happen makes an event of the column before; p is the case's packet.
func (r *run) happen(event string, p Packet) error {
	if d, err := time.ParseDuration(event); err == nil {
		r.world.Now += d
		return nil
	}
	agents, _ := r.socket("bound")
	other, _ := r.socket("other")
	open := opening(p)
	word, argument, _ := strings.Cut(event, " ")
	switch {
	case event == "fell back":
		open.Socket = Socket{}
		return r.pass(open, r.entry(open)...)
	case event == "delivered":
		open.Socket = agents
		if err := r.all(r.renew); err != nil {
			return err
		}
		return r.pass(open, r.entry(open)...)
	case event == "tried": // a query under the present leases, whose answer does not come
		open.Socket = agents
		return r.pass(open, r.entry(open)...)
	case event == "again": // another packet of the connection
		return r.pass(p, r.entry(p)...)
	case event == "heard":
		return r.pass(open, Input)
	case event == "opened to the other":
		open.Socket = other
		return r.pass(open, r.entry(open)...)
	case event == "renewed":
		return r.all(r.renew)
	case event == "withdrawn":
		return r.all(r.withdraw)
	case word == "held": // "held 2": by the third step
		step, err := strconv.Atoi(argument)
		if err != nil {
			return err
		}
		return r.control(p, portHold+uint16(step)) //nolint:gosec // 0 to 3
	case event == "released":
		return r.control(p, portRelease)
	case event == "moved": // the address lives behind another link from now on
		r.world.routes[p.Src] = otherLink
		return nil
	case event == "node-cache was killed":
		r.world.NodeCache = r.c.Arrangement.leased(r.is4)
		return nil
	case event == "no Service":
		r.world.Services = []netip.Addr{r.words["second"]}
		return nil
	case word == "queried":
		q := p
		if strings.Contains(r.c.Packet, "answer") {
			q = reverse(p)
		}
		to, by, _ := strings.Cut(argument, " by ")
		if to != "" {
			q.Dst = r.words[to]
		}
		if by != "" {
			q.In = by
		} else if q.In = r.world.Route(q.Src); q.Src == r.words["node"] {
			q.In = ""
		}
		return r.pass(opening(q), r.entry(q)...)
	case word == "answered": // in a pod, from this address
		a := reverse(p)
		if a.Src = r.words[argument]; a.Protocol == steer.TCP {
			a.Flags = SYN | ACK
		}
		return r.pass(a, Prerouting, Input)
	case event == "reset":
		a := reverse(p)
		a.Src, a.Flags = r.words["steering"], RST|ACK
		return r.pass(a, Prerouting, Input)
	}
	return fmt.Errorf("nothing is called %q", event)
}

// Ports of the control datagrams that carry a client (pkg/steer/hold.go).
const portHold, portRelease = 201, 301

// control passes a control packet of the agent: it has the client's addresses and protocol, and the agent's mark and secret.
func (r *run) control(client Packet, port uint16) error {
	client.DstPort, client.Mark, client.Root, client.Secret, client.In, client.Flags = port, steer.Mark, true, Secret, "", 0
	if to, ok := r.words["steering"]; ok && client.Dst == r.words["cluster"] && !r.c.Arrangement.ours(client.Dst) {
		client.Dst = to // under interception the switch knows a client by the steering address
	}
	return r.pass(client, Output)
}

// all does something for the leases of all addresses and protocols.
func (r *run) all(do func(netip.Addr, steer.Protocol) error) error {
	for _, a := range r.c.Arrangement.leased(r.is4) {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			if err := do(a, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) renew(a netip.Addr, p steer.Protocol) error {
	port, _ := steer.LeasePorts(p)
	return r.datagram(a, port)
}

func (r *run) withdraw(a netip.Addr, p steer.Protocol) error {
	_, port := steer.LeasePorts(p)
	return r.datagram(a, port)
}

// datagram passes a datagram that renews or withdraws a lease. The kernel gives it its destination as source, because that is an address of
// the node.
func (r *run) datagram(to netip.Addr, port int) error {
	return r.pass(Packet{Src: to, Dst: to, Protocol: steer.UDP, SrcPort: clientPort, DstPort: uint16(port), //nolint:gosec // a constant
		Mark: steer.Mark, Root: true, Secret: Secret}, Output)
}

// lease brings the leases into the state that the case names.
func (r *run) lease(p Packet) error {
	one := func(only func(netip.Addr, steer.Protocol) bool) error {
		return r.all(func(a netip.Addr, proto steer.Protocol) error {
			if only(a, proto) {
				return r.renew(a, proto)
			}
			return nil
		})
	}
	var err error
	switch r.c.Lease {
	case "", "none":
	case "held":
		err = r.all(r.renew)
	case "udp", "tcp":
		err = one(func(_ netip.Addr, proto steer.Protocol) bool { return proto.String() == r.c.Lease })
	case "elsewhere":
		err = one(func(a netip.Addr, _ steer.Protocol) bool { return a != p.Dst })
	case "withdrawn":
		if err = r.all(r.renew); err == nil {
			err = r.all(r.withdraw)
		}
	case "lapsed":
		err = r.all(r.renew)
		r.world.Now += 2 * time.Second
	case "drain": // the drain of the last renewal is over, that of the withdrawal is not
		if err = r.all(r.renew); err == nil {
			r.world.Now += 500 * time.Millisecond
			err = r.all(r.withdraw)
			r.world.Now += 9700 * time.Millisecond
		}
	case "ended":
		if err = r.all(r.renew); err == nil {
			err = r.all(r.withdraw)
			r.world.Now += 15 * time.Second
		}
	default:
		return fmt.Errorf("no state of the lease is called %q", r.c.Lease)
	}
	return err
}

// noted returns the evidence sets that have the packet's source with any of our addresses: with node interception, the packet gets one of
// them on its way.
func (r *run) noted(p Packet) map[string]bool {
	out := map[string]bool{}
	for _, a := range r.c.Arrangement.leased(r.is4) {
		for _, set := range r.rules.Noted(steer.Client{Source: p.Src, Protocol: p.Protocol, Address: a}, r.world) {
			out[set] = true
		}
	}
	return out
}

// result passes the packet through its place and returns its fate in words.
func (r *run) result(p Packet) (string, error) {
	hooks, err := r.hooks()
	if err != nil {
		return "", err
	}
	was, before := p, r.noted(p)
	for _, h := range hooks {
		if err := r.rules.Pass(h, &p, r.world); err != nil {
			return "", err
		}
		if p.Dropped {
			break
		}
	}
	words := strings.Join(r.goes(was, p), ", ")
	var counted, evidence []string
	for _, name := range p.Counted {
		if strings.HasPrefix(name, "heard") {
			evidence = append(evidence, name)
		} else {
			counted = append(counted, name)
		}
	}
	after := r.noted(was)
	for _, set := range slices.Sorted(maps.Keys(after)) {
		if !before[set] {
			evidence = append(evidence, "+"+set)
		}
	}
	for _, set := range slices.Sorted(maps.Keys(before)) {
		if !after[set] {
			evidence = append(evidence, "-"+set)
		}
	}
	if len(counted) > 0 {
		words += "; " + strings.Join(counted, " ")
	}
	if len(evidence) > 0 {
		words += " [" + strings.Join(evidence, " ") + "]"
	}
	return words, nil
}

// goes describes in words where a packet went.
func (r *run) goes(was, p Packet) []string {
	if p.Dropped {
		return []string{"dropped"}
	}
	var out []string
	say := func(when bool, words string) {
		if when {
			out = append(out, words)
		}
	}
	tracked := "" // usually the packet is not tracked, so only the other case gets a word
	if !p.Untracked {
		tracked = " tracked"
	}
	a := r.c.Arrangement
	// Behind these two hooks the kernel routes the packet: one with our address goes to the program that is bound there.
	isQuery := p.DstPort == 53 && (r.c.Place == string(Prerouting) || r.c.Place == string(Output))
	reaches := isQuery && a.ours(p.Dst) && !p.Translated
	listens := cmp.Or(p.Socket.Owner, "closed") + tracked
	switch {
	case p.Dst != was.Dst && reaches:
		out = append(out, listens+" at "+r.word(p.Dst))
	case p.Dst != was.Dst && p.Dst == r.words["cluster"] && !r.c.OfPod(), p.Dst != was.Dst && p.Dst == r.words["second"]:
		say(p.Dst == r.words["cluster"], "kube-dns")
		say(p.Dst == r.words["second"], "kube-dns by second")
		say(p.Untracked, "untracked") // then kube-proxy never sees it
	case p.Dst != was.Dst:
		out = append(out, "to "+r.word(p.Dst))
	case reaches:
		out = append(out, listens)
	default:
		say(p.Translated && a.ours(p.Dst), "kube-proxy")
		say(p.Untracked, "untracked")
	}
	say(p.Src != was.Src, "from "+r.word(p.Src))
	say(p.SourceNAT != "", p.SourceNAT)
	say(r.c.Place == string(Postrouting) && p.Settled && p.SourceNAT == "", "kept as it is")
	say(p.Accepted, "accepted")
	say(p.Mark != was.Mark && p.Mark == 0, "unmarked")
	say(p.Mark != was.Mark && p.Mark == steer.OwnMark, "marked for the turn")
	say(p.Mark != was.Mark && p.Mark == steer.AnswerMark, "marked as the turn's")
	say(p.Conn != nil && p.New && p.Conn.Mark != 0, "connection marked")
	if len(out) == 0 {
		out = []string{"untouched"}
	}
	return out
}
