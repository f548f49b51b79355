package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil/trace"
)

// tracer follows packets through a table as the kernel's nf_tables does: expression by expression, over registers and over the
// bytes of the packet's headers. It knows the expressions that neardns's rules use; any other is an error.
type tracer struct {
	table table
	sets  map[string]*tracedSet
}

type tracedSet struct {
	set
	values  map[string]string        // by key; in a set they are empty
	expires map[string]time.Duration // of an element that a packet added
}

// program is a table in the form that package trace needs.
type program struct{ table table }

func (p program) Keys() []string {
	var out []string
	for _, c := range p.table.chains {
		for _, r := range c.rules {
			out = append(out, trace.Key(c.name, r.text()))
		}
	}
	return out
}

func (p program) Start(without string) trace.Rules {
	t := &tracer{sets: map[string]*tracedSet{}}
	for _, s := range p.table.sets {
		traced := &tracedSet{s, map[string]string{}, map[string]time.Duration{}}
		for _, e := range s.elements {
			traced.values[string(e.key)] = string(e.value)
		}
		t.sets[s.name] = traced
	}
	for _, c := range p.table.chains {
		if strings.HasPrefix(without, c.name+": ") {
			c.rules = slices.DeleteFunc(slices.Clone(c.rules), func(r rule) bool { return trace.Key(c.name, r.text()) == without })
		}
		t.table.chains = append(t.table.chains, c)
	}
	return t
}

// hooks are their numbers; conntrack and the nat hooks are at these priorities (netfilter_ipv4.h).
var hooks = map[trace.Hook]uint32{trace.Prerouting: unix.NF_INET_PRE_ROUTING, trace.Input: unix.NF_INET_LOCAL_IN,
	trace.Forward: unix.NF_INET_FORWARD, trace.Output: unix.NF_INET_LOCAL_OUT, trace.Postrouting: unix.NF_INET_POST_ROUTING}

const rawPriority, conntrackPriority, dnatPriority, snatPriority = -300, -200, -100, 100

// Pass runs all of neardns's chains at a hook by priority, and between them what conntrack and other programs do there.
func (t *tracer) Pass(h trace.Hook, p *trace.Packet, w *trace.World) error {
	type step struct {
		priority int32
		do       func() error
	}
	natPriority := int32(dnatPriority)
	if h == trace.Postrouting || h == trace.Input {
		natPriority = snatPriority
	}
	// Chains at a hook run by priority, and those of one priority in the order in which they were added (nf_register_net_hooks):
	// neardns's come in the table's order.
	steps := []step{
		{rawPriority, func() error { w.Raw(h, p); return nil }},
		{conntrackPriority, func() error { w.Track(p); return nil }},
		{natPriority, func() error { w.Translate(h, p); return nil }},
	}
	if h != trace.Prerouting && h != trace.Output {
		steps[1].priority = -400 // the packet has it already
	}
	for _, c := range t.table.chains {
		if c.hook == nil || c.hook.num != hooks[h] {
			continue
		}
		steps = append(steps, step{c.hook.priority, func() error {
			// A nat chain sees only the first packet of a connection (nf_nat_core.c).
			if p.Dropped || c.hook.kind == "nat" && (p.Conn == nil || !p.New) {
				return nil
			}
			return t.base(c, h, p, w)
		}})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.priority) - int(b.priority) })
	for _, s := range steps {
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}

// base runs a base chain and those that it goes to. No rule of neardns jumps, so no packet ever comes back to a chain.
func (t *tracer) base(c chain, h trace.Hook, p *trace.Packet, w *trace.World) error {
	for {
		verdict, err := t.chain(c, h, p, w)
		if err != nil || verdict == nil {
			return err // the policy is accept
		}
		switch verdict.Kind {
		case expr.VerdictAccept, expr.VerdictReturn: // ends this base chain only; later ones still see the packet
			return nil
		case expr.VerdictDrop:
			p.Dropped = true
			return nil
		case expr.VerdictGoto:
			at := slices.IndexFunc(t.table.chains, func(to chain) bool { return to.name == verdict.Chain })
			if at < 0 {
				return fmt.Errorf("chain %s goes to %s, which there is not", c.name, verdict.Chain)
			}
			c = t.table.chains[at]
		default:
			return fmt.Errorf("chain %s: the tracer does not know verdict %d", c.name, verdict.Kind)
		}
	}
}

// chain runs a chain until a rule has a verdict; nil if none has.
func (t *tracer) chain(c chain, h trace.Hook, p *trace.Packet, w *trace.World) (*expr.Verdict, error) {
	for _, r := range c.rules {
		x := evaluation{t: t, h: h, p: p, w: w}
		goes := true
		for _, o := range r.ops {
			var err error
			if goes, err = x.op(o); err != nil {
				return nil, fmt.Errorf("chain %s, rule %q: %w", c.name, r.text(), err)
			}
			if !goes {
				break
			}
		}
		if goes {
			w.Took(c.name, r.text())
		}
		if x.verdict != nil {
			return x.verdict, nil
		}
	}
	return nil, nil
}

// registers are the kernel's: 16 words, of which NFT_REG_1 to 4 name four each (nf_tables.h).
type registers [64]byte

func (r *registers) at(number uint32) ([]byte, error) {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		return r[(number-unix.NFT_REG_1)*16:], nil
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return r[(number-unix.NFT_REG32_00)*4:], nil
	}
	return nil, fmt.Errorf("there is no register %d", number)
}

// load puts a value into a register and fills up its last word.
func (r *registers) load(number uint32, value []byte) error {
	to, err := r.at(number)
	if err == nil {
		copy(to, append(slices.Clone(value), make([]byte, -len(value)&3)...))
	}
	return err
}

// evaluation is the state while a rule's expressions are evaluated.
type evaluation struct {
	t       *tracer
	h       trace.Hook
	p       *trace.Packet
	w       *trace.World
	regs    registers
	verdict *expr.Verdict // the rule's verdict, which is its last expression
}

// op evaluates an expression. false ends the rule.
func (x *evaluation) op(o op) (bool, error) {
	switch e := o.expr.(type) {
	case nil:
		return x.zone(o.zone == zoneSet)
	case *expr.Verdict:
		x.verdict = e
		return true, nil
	case *expr.Immediate:
		return true, x.regs.load(e.Register, e.Data)
	case *expr.Cmp:
		have, err := x.regs.at(e.Register)
		if err != nil || e.Op != expr.CmpOpEq && e.Op != expr.CmpOpNeq {
			return false, fmt.Errorf("the tracer does not know this comparison: %+v, %w", e, err)
		}
		return bytes.Equal(have[:len(e.Data)], e.Data) == (e.Op == expr.CmpOpEq), nil
	case *expr.Bitwise:
		from, err := x.regs.at(e.SourceRegister)
		if err != nil {
			return false, err
		}
		out := make([]byte, e.Len)
		for i := range out {
			out[i] = from[i]&e.Mask[i] ^ e.Xor[i]
		}
		return true, x.regs.load(e.DestRegister, out)
	case *expr.Meta:
		return x.meta(e)
	case *expr.Payload:
		return x.payload(e)
	case *expr.Lookup:
		return x.lookup(e)
	case *expr.Dynset:
		return x.dynset(e)
	case *expr.Fib:
		return x.fib(e)
	case *expr.Socket:
		return x.socket(e)
	case *expr.Ct: // without an entry the rule ends, as it does for what is not tracked (nft_ct.c)
		if e.Key != expr.CtKeyDIRECTION || e.SourceRegister {
			return false, fmt.Errorf("the tracer does not know ct key %d", e.Key)
		}
		if x.p.Conn == nil {
			return false, nil
		}
		direction := byte(0)
		if x.p.Reply {
			direction = 1
		}
		return true, x.regs.load(e.Register, []byte{direction})
	case *expr.Objref:
		if e.Type != unix.NFT_OBJECT_COUNTER {
			return false, fmt.Errorf("the tracer does not know objects of type %d", e.Type)
		}
		x.p.Count(e.Name)
		return true, nil
	case *expr.Notrack:
		if x.p.Conn == nil && x.p.Zone == 0 { // a zone is a template of connection tracking (nft_ct.c)
			x.p.Untracked = true
		}
		return true, nil
	case *expr.Masq:
		x.p.SourceNAT = "masqueraded"
		x.verdict = &expr.Verdict{Kind: expr.VerdictAccept}
		return true, nil
	}
	return false, fmt.Errorf("the tracer does not know the expression %T", o.expr)
}

// zone evaluates the conntrack zone, which google/nftables cannot write. The zone is set before connection tracking, or not at all
// (nft_ct.c).
func (x *evaluation) zone(set bool) (bool, error) {
	if set {
		from, err := x.regs.at(unix.NFT_REG_1)
		if err == nil && x.p.Conn == nil && !x.p.Untracked {
			x.p.Zone = binary.NativeEndian.Uint16(from)
		}
		return true, err
	}
	if x.p.Conn == nil {
		return false, nil
	}
	return true, x.regs.load(unix.NFT_REG_1, binary.NativeEndian.AppendUint16(nil, x.p.Conn.Zone))
}

func (x *evaluation) meta(e *expr.Meta) (bool, error) {
	if e.SourceRegister {
		from, err := x.regs.at(e.Register)
		if err == nil && e.Key != expr.MetaKeyMARK {
			err = fmt.Errorf("the tracer cannot set meta key %d", e.Key)
		}
		if err == nil {
			x.p.Mark = binary.NativeEndian.Uint32(from)
		}
		return true, err
	}
	name := func(link string) []byte { return append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...) }
	var value []byte
	switch e.Key {
	case expr.MetaKeyNFPROTO:
		value = []byte{unix.NFPROTO_IPV6}
		if x.p.Dst.Is4() {
			value = []byte{unix.NFPROTO_IPV4}
		}
	case expr.MetaKeyL4PROTO:
		value = []byte{byte(x.p.Protocol)}
	case expr.MetaKeyIIFNAME:
		value = name(x.p.In)
	case expr.MetaKeyOIFNAME:
		value = name(x.p.Out)
	case expr.MetaKeyIIF:
		value = binary.NativeEndian.AppendUint32(nil, x.w.Index(x.p.In))
	case expr.MetaKeyMARK:
		value = binary.NativeEndian.AppendUint32(nil, x.p.Mark)
	case expr.MetaKeySKUID:
		value = make([]byte, 4)
		if !x.p.Root {
			value[0] = 1
		}
	default:
		return false, fmt.Errorf("the tracer does not know meta key %d", e.Key)
	}
	return true, x.regs.load(e.Register, value)
}

// headers are the packet's network header and what follows it, as far as rules look: offsets that are wrong read something else here,
// too.
func headers(p *trace.Packet) (network, transport []byte) {
	if p.Src.Is4() {
		network = slices.Concat(make([]byte, 12), p.Src.AsSlice(), p.Dst.AsSlice())
	} else {
		network = slices.Concat(make([]byte, 8), p.Src.AsSlice(), p.Dst.AsSlice())
	}
	if p.Later {
		return network, nil
	}
	transport = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.SrcPort), p.DstPort)
	secret := binary.BigEndian.AppendUint64(nil, uint64(p.Secret))
	if p.Protocol == steer.UDP {
		return network, slices.Concat(transport, make([]byte, 4), secret)
	}
	return network, slices.Concat(transport, secret, []byte{5 << 4, p.Flags}, make([]byte, 6))
}

func (x *evaluation) payload(e *expr.Payload) (bool, error) {
	network, from := headers(x.p)
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		from = network
	case expr.PayloadBaseTransportHeader:
	default:
		return false, fmt.Errorf("the tracer does not know payload base %d", e.Base)
	}
	if int(e.Offset+e.Len) > len(from) {
		return false, nil // the kernel ends the rule, too
	}
	if e.OperationType == expr.PayloadLoad {
		return true, x.regs.load(e.DestRegister, from[e.Offset:e.Offset+e.Len])
	}
	value, err := x.regs.at(e.SourceRegister)
	src := 12 // where the source begins; the destination follows it
	if x.p.Src.Is6() {
		src = 8
	}
	size := len(x.p.Src.AsSlice())
	at, fits := int(e.Offset)-src, int(e.Len) == size && e.Base == expr.PayloadBaseNetworkHeader
	switch {
	case err != nil:
	case fits && at == 0 && x.p.Src.UnmarshalBinary(value[:size]) == nil:
	case fits && at == size && x.p.Dst.UnmarshalBinary(value[:size]) == nil:
	default:
		err = fmt.Errorf("the tracer cannot write %d bytes at %d", e.Len, e.Offset)
	}
	return true, err
}

// find looks for the key that begins at a register, unless it has expired.
func (x *evaluation) find(name string, register uint32) (s *tracedSet, key, value string, ok bool, err error) {
	s = x.t.sets[name]
	if s == nil {
		return nil, "", "", false, fmt.Errorf("there is no set %s", name)
	}
	from, err := x.regs.at(register)
	if err != nil {
		return nil, "", "", false, err
	}
	key = string(from[:s.keyLen()])
	value, ok = s.values[key]
	if until, dies := s.expires[key]; dies && until <= x.w.Now { // not freed yet, but no longer found
		ok = false
	}
	return s, key, value, ok, nil
}

func (x *evaluation) lookup(e *expr.Lookup) (bool, error) {
	_, _, value, ok, err := x.find(e.SetName, e.SourceRegister)
	if err == nil && ok && e.IsDestRegSet {
		err = x.regs.load(e.DestRegister, []byte(value))
	}
	return ok != e.Invert, err
}

// dynset adds a key to a set or removes it. No set is ever full here.
func (x *evaluation) dynset(e *expr.Dynset) (bool, error) {
	s, key, _, ok, err := x.find(e.SetName, e.SrcRegKey)
	switch {
	case err != nil:
		return false, err
	case len(e.Exprs) > 0 || e.SrcRegData != 0 || e.Invert || s.size == 0:
		return false, fmt.Errorf("the tracer does not know this use of set %s", e.SetName)
	case e.Operation == 2: // NFT_DYNSET_OP_DELETE
		delete(s.values, key)
		delete(s.expires, key)
		return true, nil
	case e.Operation == unix.NFT_DYNSET_OP_ADD && ok:
		return true, nil // the element and its timeout stay as they are
	case e.Operation != unix.NFT_DYNSET_OP_ADD && e.Operation != unix.NFT_DYNSET_OP_UPDATE:
		return false, fmt.Errorf("the tracer does not know operation %d on a set", e.Operation)
	}
	timeout := s.timeout
	if e.Timeout > 0 {
		timeout = e.Timeout
	}
	s.values[key] = ""
	delete(s.expires, key)
	if timeout > 0 {
		s.expires[key] = x.w.Now + timeout
	}
	return true, nil
}

// fib looks the source up: by any link, or by the one that the packet came by. An address of the host itself is behind none
// (nft_fib_ipv4.c).
func (x *evaluation) fib(e *expr.Fib) (bool, error) {
	link := x.w.Route(x.p.Src)
	switch *e {
	case expr.Fib{Register: e.Register, ResultOIF: true, FlagSADDR: true, FlagIIF: true}:
		if link != x.p.In {
			link = ""
		}
		return true, x.regs.load(e.Register, binary.NativeEndian.AppendUint32(nil, x.w.Index(link)))
	case expr.Fib{Register: e.Register, ResultOIFNAME: true, FlagSADDR: true}:
		return true, x.regs.load(e.Register, append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...))
	}
	return false, fmt.Errorf("the tracer does not know this look at the routes: %+v", e)
}

func (x *evaluation) socket(e *expr.Socket) (bool, error) {
	s := x.p.Socket
	bit := func(b bool) []byte {
		if b {
			return []byte{1}
		}
		return []byte{0}
	}
	switch {
	case x.h != trace.Prerouting:
		return false, fmt.Errorf("in %s a look-up finds the sender's own socket", x.h)
	case !s.Found():
		return false, nil
	case e.Key == expr.SocketKeyTransparent:
		return true, x.regs.load(e.Register, bit(s.Transparent))
	case e.Key == expr.SocketKeyWildcard && s.Request:
		return false, nil // it needs a full socket
	case e.Key == expr.SocketKeyWildcard:
		return true, x.regs.load(e.Register, bit(s.Wildcard))
	}
	return false, fmt.Errorf("the tracer does not know socket key %d", e.Key)
}

// Noted reads the records of clients.
func (t *tracer) Noted(c steer.Client, w *trace.World) []string {
	suffix := "6"
	if c.Source.Is4() {
		suffix = "4"
	}
	key := slices.Concat(c.Source.AsSlice(), []byte{byte(c.Protocol), 0, 0, 0}, c.Address.AsSlice())
	var out []string
	for _, name := range []string{"asked", "heard", "suspect", "bypass"} {
		if s := t.sets[name+suffix]; s != nil {
			if _, ok := s.values[string(key)]; ok && s.expires[string(key)] > w.Now {
				out = append(out, name)
			}
		}
	}
	return out
}

// traced is this back end in the form that the tracer needs.
var traced = trace.Backend{
	Name: "nftables",
	Host: func(a trace.Arrangement) trace.Program { return program{render(a.Host)} },
	Pod:  func(a trace.Arrangement) trace.Program { return program{render(a.Pod)} },
}

// Where each packet of the list goes (pkg/testutil/trace/cases.md).
func TestTrace(t *testing.T) { traced.Check(t) }

// Without any one rule, some case of the list fails. The exceptions are rules that do what another rule does as well.
func TestTraceShowsEachRule(t *testing.T) {
	unseen := map[string]string{
		"ask1: goto steer1":                            "no set is ever full here",
		"direct1: tcp flags syn / syn,ack goto steer1": "no set is ever full here",
	}
	for _, f := range []struct {
		is4        bool
		suffix, ip string
		zone       int
	}{{true, "4", "ip", 28260}, {false, "6", "ip6", 28262}} {
		for _, transparent := range []int{0, 1} {
			unseen[fmt.Sprintf("tcp%s: %s daddr @lease_tcp%[1]s socket transparent %[3]d notrack accept", f.suffix, f.ip, transparent)] =
				"each renewal sets the drain too, which lasts longer"
		}
		for _, hook := range []string{"input", "postrouting"} {
			for _, proto := range []string{"udp", "tcp"} {
				key := fmt.Sprintf("%s: %s sport 53 %s saddr %s ct direction reply ct original zone %d %[3]s saddr set %[4]s",
					hook, proto, f.ip, trace.Address("cluster", f.is4), f.zone)
				unseen[key] = "an address on the link that is its own fallback is written over itself"
			}
		}
	}
	traced.CheckRules(t, unseen)
}
