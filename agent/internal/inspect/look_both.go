package inspect

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/kubedns"
	"github.com/neardns/neardns/pkg/steer"
)

// mostBoth bounds the names that are asked both ways.
const mostBoth = 24

// bothQuestion is a name and what is asked for it.
type bothQuestion struct {
	name string // with its final dot
	kind dnsmessage.Type
}

// both asks the agent and kube-dns the same questions at the same time: the agent at an address of its own, kube-dns at the
// cluster DNS address as it is for the fallback, untouched by us. Where no agent listens there is nothing to compare.
func (l *Looker) both(ctx context.Context, want plan.Plan) []Both {
	if len(want.Redirects) == 0 || len(want.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r := want.Redirects[0]
	questions := l.bothQuestions(want)
	out := make([]Both, len(questions))
	mark := 0
	if want.InterceptNode {
		mark = steer.Mark // else the host's rules would lead the question to the agent
	}
	var wg sync.WaitGroup
	for i, q := range questions {
		out[i] = Both{Name: q.name + " " + strings.TrimPrefix(q.kind.String(), "Type"), KubeDNSAt: r.ClusterDNS}
		wg.Go(func() { out[i].Agent = q.ask(ctx, r.Steering, 0) })
		wg.Go(func() { out[i].KubeDNS = q.ask(ctx, r.ClusterDNS, mark) })
	}
	wg.Wait()
	return out
}

// bothQuestions chooses names that show a difference where there is one: the cluster's own, one outside, and what kube-dns's
// Corefile and the configuration name.
func (l *Looker) bothQuestions(want plan.Plan) []bothQuestion {
	out := []bothQuestion{
		{"kubernetes.default.svc." + l.Conf.ClusterDomain + ".", dnsmessage.TypeA},
		{"example.com.", dnsmessage.TypeA}, // reserved by IANA (RFC 2606): of no interest to anybody
		{reverse(want.Redirects[0].ClusterDNS), dnsmessage.TypePTR},
	}
	var names []string
	if text, err := l.ReadFile(l.Conf.Upstreams.Corefile); err == nil {
		names = kubedns.Read(string(text), l.Conf.ClusterDomain).Names
	}
	for domain := range l.Conf.StubDomains {
		if !slices.Contains(names, domain+".") {
			names = append(names, domain+".")
		}
	}
	for _, n := range names {
		// Its zone's SOA tells apart who answers for a zone whose top has no address.
		out = append(out, bothQuestion{n, dnsmessage.TypeA}, bothQuestion{n, dnsmessage.TypeSOA})
	}
	return out[:min(len(out), mostBoth)]
}

// reverse is the name of an address for PTR (RFC 1035, section 3.5; RFC 3596, section 2.5).
func reverse(a netip.Addr) string {
	const hex = "0123456789abcdef"
	var labels []string
	if a.Is4() {
		labels = strings.Split(a.String(), ".")
		slices.Reverse(labels)
		return strings.Join(labels, ".") + ".in-addr.arpa."
	}
	bytes := a.As16()
	for _, b := range slices.Backward(bytes[:]) {
		labels = append(labels, string(hex[b&15]), string(hex[b>>4]))
	}
	return strings.Join(labels, ".") + ".ip6.arpa."
}

// ask asks one server over UDP, and over TCP where that is cut.
func (q bothQuestion) ask(ctx context.Context, server netip.Addr, mark int) Said {
	said, cut := q.exchange(ctx, "udp", server, mark)
	if cut {
		said, _ = q.exchange(ctx, "tcp", server, mark)
	}
	return said
}

func (q bothQuestion) exchange(ctx context.Context, network string, server netip.Addr, mark int) (said Said, cut bool) {
	fail := func(err error) (Said, bool) {
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			return Said{Err: "no answer"}, false
		}
		var op *net.OpError
		if errors.As(err, &op) {
			if op.Timeout() {
				return Said{Err: "no answer"}, false
			}
			err = op.Err // the rest of its text has ports that change
		}
		return Said{Err: err.Error()}, false
	}
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if mark != 0 {
			err = errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }), err)
		}
		return err
	}}
	conn, err := dialer.DialContext(ctx, network, netip.AddrPortFrom(server, 53).String())
	if err != nil {
		return fail(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is written any more
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	name, err := dnsmessage.NewName(q.name)
	if err != nil {
		return fail(err)
	}
	ask := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0x4e44, RecursionDesired: true}, // on a socket of its own
		Questions: []dnsmessage.Question{{Name: name, Type: q.kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := ask.AppendPack(make([]byte, 2, 514)) // behind TCP's length (RFC 1035, section 4.2.2)
	if err != nil {
		return fail(err)
	}
	packed[0], packed[1] = byte((len(packed)-2)>>8), byte(len(packed)-2)
	if network == "udp" {
		packed = packed[2:]
	}
	if _, err := conn.Write(packed); err != nil {
		return fail(err)
	}
	answer := make([]byte, 65535)
	n, err := readMessage(conn, network, answer)
	if err != nil {
		return fail(err)
	}
	return read(answer[:n])
}

func readMessage(conn net.Conn, network string, into []byte) (int, error) {
	if network == "udp" {
		return conn.Read(into)
	}
	var length [2]byte
	if _, err := readFull(conn, length[:]); err != nil {
		return 0, err
	}
	return readFull(conn, into[:int(length[0])<<8|int(length[1])])
}

func readFull(conn net.Conn, into []byte) (n int, err error) {
	for n < len(into) && err == nil {
		var more int
		more, err = conn.Read(into[n:])
		n += more
	}
	return n, err
}

// read takes from an answer what is compared: the code, and the records without their TTLs.
func read(message []byte) (said Said, cut bool) {
	var m dnsmessage.Message
	if err := m.Unpack(message); err != nil {
		return Said{Err: err.Error()}, false
	}
	said.Code = strings.ToUpper(strings.TrimPrefix(m.RCode.String(), "RCode"))
	switch m.RCode {
	case dnsmessage.RCodeSuccess:
		said.Code = "NOERROR"
	case dnsmessage.RCodeNameError:
		said.Code = "NXDOMAIN"
	case dnsmessage.RCodeServerFailure:
		said.Code = "SERVFAIL"
	}
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			said.Records = append(said.Records, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			said.Records = append(said.Records, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.PTRResource:
			said.Records = append(said.Records, b.PTR.String())
		case *dnsmessage.SOAResource:
			said.Records = append(said.Records, b.NS.String()) // the serial counts up
		}
	}
	slices.Sort(said.Records)
	return said, m.Truncated
}
