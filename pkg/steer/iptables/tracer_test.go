package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil/trace"
)

// tracer follows packets through neardns's chains as x_tables does, from the input of iptables-restore. It knows the matches and targets
// that neardns's rules have; any other is an error.
type tracer struct {
	scripts []script
	without string
	recent  map[string]map[netip.Addr]time.Duration // xt_recent's lists: when an address was last added
}

// program is a description's scripts in the form that package trace needs.
type program []script

func (p program) Keys() []string {
	var out []string
	for _, s := range p {
		for _, c := range s.chains {
			for _, r := range c.rules {
				out = append(out, trace.Key(c.table+" "+c.name, r))
			}
		}
	}
	return out
}

func (p program) Start(without string) trace.Rules {
	return &tracer{p, without, map[string]map[netip.Addr]time.Duration{}}
}

// Noted does nothing: this back end keeps no records of clients.
func (t *tracer) Noted(steer.Client, *trace.World) []string { return nil }

// Pass runs the tables of a hook by priority, with connection tracking after raw (netfilter_ipv4.h).
func (t *tracer) Pass(h trace.Hook, p *trace.Packet, w *trace.World) error {
	tables := map[trace.Hook][]string{
		trace.Prerouting: {"raw", "", "mangle", "nat"}, trace.Input: {"", "mangle", "filter", "nat"}, trace.Forward: {"", "mangle", "filter"},
		trace.Output: {"raw", "", "mangle", "nat", "filter"}, trace.Postrouting: {"", "mangle", "nat"},
	}
	for _, table := range tables[h] {
		if p.Dropped {
			return nil
		}
		if table == "" {
			w.Track(p)
			continue
		}
		if err := t.table(table, h, p, w); err != nil {
			return err
		}
	}
	return nil
}

// table runs the chains at a hook: neardns's that come first, then other programs', then neardns's that come last.
func (t *tracer) table(table string, h trace.Hook, p *trace.Packet, w *trace.World) error {
	var err error
	// Only the first packet of a connection passes nat; later ones are changed as it was.
	ended := table == "nat" && (p.Conn == nil || !p.New)
	for _, last := range []bool{false, true} {
		for _, s := range t.scripts {
			for _, c := range s.in(table) {
				for _, j := range c.from {
					if s.is4 != p.Dst.Is4() || j.last != last || !strings.EqualFold(j.base, string(h)) || ended {
						continue
					}
					x := evaluation{t: t, s: s, h: h, p: p, w: w}
					if ended, err = x.chain(c); err != nil {
						return err
					}
				}
			}
		}
		switch {
		case last || ended && table != "nat":
		case table == "raw":
			w.Raw(h, p)
		case table == "nat":
			w.Translate(h, p)
			ended = ended || p.Translated
		}
	}
	return nil
}

// evaluation is one packet in one family's chains.
type evaluation struct {
	t *tracer
	s script
	h trace.Hook
	p *trace.Packet
	w *trace.World

	counter string // of the current rule, by its comment
}

// chain runs a chain; true if the packet needs no further rule of the table. A goto does not come back to this chain, so what follows it is
// what follows the jump to this one.
func (x *evaluation) chain(c chain) (ended bool, err error) {
	in := c.table + " " + c.name
	for _, rule := range c.rules {
		if strings.HasPrefix(x.t.without, in) && trace.Key(in, rule) == x.t.without {
			continue
		}
		does, met, err := x.rule(rule)
		if err != nil {
			return false, fmt.Errorf("chain %s, rule %q: %w", c.name, rule, err)
		}
		if met {
			x.w.Took(in, rule)
		}
		switch {
		case does.ends:
			if c.table == "nat" {
				x.p.Settled = true
			}
			x.p.Accepted = x.p.Accepted || c.table == "filter" && !x.p.Dropped
			return true, nil
		case does.returns:
			return false, nil
		case does.to != "":
			at := slices.IndexFunc(x.s.chains, func(to chain) bool { return to.table == c.table && to.name == does.to })
			if at < 0 {
				return false, fmt.Errorf("chain %s goes to %s, which there is not", c.name, does.to)
			}
			if ended, err = x.chain(x.s.chains[at]); err != nil || ended || does.stays {
				return ended, err
			}
		}
	}
	return false, nil
}

// outcome is a rule's effect on a packet that it matches.
type outcome struct {
	ends, returns bool
	to            string // a chain
	stays         bool   // a goto: the packet does not come back from that chain
}

// rule evaluates a rule's words in order; a match that fails ends it.
func (x *evaluation) rule(text string) (does outcome, met bool, err error) {
	words := strings.Fields(text)
	next := func() string {
		if len(words) == 0 {
			return ""
		}
		word := words[0]
		words = words[1:]
		return word
	}
	not := false
	x.counter = ""
	for len(words) > 0 {
		option := next()
		if option == "!" {
			not = true
			continue
		}
		if option == "-j" || option == "-g" {
			if x.counter != "" {
				x.p.Count(x.counter)
			}
			does, err = x.target(option == "-g", next(), words)
			return does, true, err
		}
		ok, err := x.match(option, next)
		if err != nil || ok == not {
			return outcome{}, false, err
		}
		not = false
	}
	return outcome{}, true, nil // a rule without a target has only the effects of its matches
}

// match evaluates one option; for a match with several options, all of them together.
func (x *evaluation) match(option string, next func() string) (bool, error) {
	p := x.p
	switch option {
	case "-s", "-d":
		prefix, err := netip.ParsePrefix(next())
		if option == "-s" {
			return prefix.Contains(p.Src), err
		}
		return prefix.Contains(p.Dst), err
	case "-i":
		return next() == p.In, nil
	case "-o":
		return next() == p.Out, nil
	case "-p":
		return next() == p.Protocol.String(), nil
	case "--dport", "--sport":
		port, err := strconv.ParseUint(next(), 10, 16)
		have := p.DstPort
		if option == "--sport" {
			have = p.SrcPort
		}
		return !p.Later && uint64(have) == port, err
	case "--tcp-flags":
		mask, want := next(), next()
		if mask != "FIN,SYN,RST,ACK" || want != "SYN" {
			return false, fmt.Errorf("the tracer does not know the flags %s %s", mask, want)
		}
		return p.Flags&(trace.FIN|trace.SYN|trace.RST|trace.ACK) == trace.SYN, nil
	case "-m":
		return x.module(next(), next)
	case "--transparent": // of socket
		return p.Socket.Transparent, nil
	case "--ctdir":
		direction := next()
		return p.Conn != nil && p.Reply == (direction == "REPLY"), nil
	}
	return false, fmt.Errorf("the tracer does not know option %s", option)
}

// module evaluates a match that is loaded by name, with its options.
func (x *evaluation) module(name string, next func() string) (bool, error) {
	p := x.p
	marked := func(mark uint32) (bool, error) {
		option := next()
		not := option == "!"
		if not {
			option = next()
		}
		value, mask, err := masked(next())
		if option != "--mark" {
			err = fmt.Errorf("the tracer does not know option %s of %s", option, name)
		}
		return (mark&mask == value) != not, err
	}
	switch name {
	case "udp", "tcp", "conntrack": // their options follow
		return true, nil
	case "comment":
		option, text := next(), next()
		x.counter = strings.TrimPrefix(text, stampPrefix)
		return option == "--comment", nil
	case "socket":
		if x.h != trace.Prerouting {
			return false, fmt.Errorf("in %s a look-up finds the sender's own socket", x.h)
		}
		return p.Socket.Found() && !p.Socket.Wildcard, nil
	case "rpfilter": // strict, as without --loose
		if option := next(); option != "--invert" {
			return false, fmt.Errorf("the tracer does not know option %s of rpfilter", option)
		}
		return x.w.Route(p.Src) != p.In, nil
	case "mark":
		return marked(p.Mark)
	case "connmark":
		if p.Conn == nil {
			return false, nil
		}
		return marked(p.Conn.Mark)
	case "recent":
		return x.recent(next)
	}
	return false, fmt.Errorf("the tracer does not know match %s", name)
}

// masked reads a mark and its mask.
func masked(text string) (value, mask uint32, err error) {
	first, second, both := strings.Cut(text, "/")
	v, err := strconv.ParseUint(first, 0, 32)
	m := uint64(0xffffffff)
	if err == nil && both {
		m, err = strconv.ParseUint(second, 0, 32)
	}
	return uint32(v), uint32(m), err
}

// recent is xt_recent by the destination: --rdest ends its options in our rules. Its change of the list
// lasts even if a later match of the rule fails.
func (x *evaluation) recent(next func() string) (bool, error) {
	does, name, seconds := "", "", 0
	var err error
	for option := next(); option != "--rdest"; option = next() {
		switch option {
		case "--set", "--remove", "--rcheck":
			does = option
		case "--name":
			name = next()
		case "--seconds":
			seconds, err = strconv.Atoi(next())
		default:
			err = fmt.Errorf("the tracer does not know option %q of recent", option)
		}
		if err != nil {
			return false, err
		}
	}
	list := x.t.recent[name]
	if list == nil {
		list = map[netip.Addr]time.Duration{}
		x.t.recent[name] = list
	}
	at, there := list[x.p.Dst]
	switch does {
	case "--set":
		list[x.p.Dst] = x.w.Now
		return true, nil
	case "--remove":
		delete(list, x.p.Dst)
		return there, nil
	case "--rcheck":
		return there && x.w.Now-at <= time.Duration(seconds)*time.Second, nil
	}
	return false, fmt.Errorf("recent is not told what to do")
}

// target carries out a rule's target.
func (x *evaluation) target(stays bool, name string, options []string) (outcome, error) {
	p := x.p
	switch text := strings.Join(options, " "); name {
	case "ACCEPT":
		return outcome{ends: true}, nil
	case "DROP":
		p.Dropped = true
		return outcome{ends: true}, nil
	case "RETURN":
		return outcome{returns: true}, nil
	case "CT":
		if text != "--notrack" {
			return outcome{}, fmt.Errorf("the tracer does not know CT %s", text)
		}
		p.Untracked = p.Untracked || p.Conn == nil
		return outcome{}, nil
	case "MARK", "CONNMARK":
		mark := &p.Mark
		if name == "CONNMARK" && p.Conn == nil {
			return outcome{}, nil
		} else if name == "CONNMARK" {
			mark = &p.Conn.Mark
		}
		if len(options) != 2 || options[0] != "--set-mark" && options[0] != "--set-xmark" {
			return outcome{}, fmt.Errorf("the tracer does not know %s %s", name, text)
		}
		value, mask, err := masked(options[1])
		*mark = *mark&^mask ^ value
		return outcome{}, err
	case "DNAT":
		to, err := netip.ParseAddrPort(strings.TrimPrefix(text, "--to-destination "))
		if err == nil && to.Port() != p.DstPort {
			err = fmt.Errorf("the tracer does not know a change of port")
		}
		if err == nil {
			p.DNAT(to.Addr())
		}
		return outcome{ends: true}, err
	case "SNAT":
		first, last, ranged := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(text, "--to-source "), " --persistent"), "-")
		if !ranged {
			last = first
		}
		from, err := netip.ParseAddr(first)
		if err != nil {
			return outcome{}, err
		}
		to, err := netip.ParseAddr(last)
		if err == nil {
			err = p.SNAT(from, to)
		}
		return outcome{ends: true}, err
	case "MASQUERADE":
		p.SourceNAT = "masqueraded"
		return outcome{ends: true}, nil
	}
	if len(options) > 0 || !strings.HasPrefix(name, "N") {
		return outcome{}, fmt.Errorf("the tracer does not know target %s", name)
	}
	return outcome{to: name, stays: stays}, nil
}
