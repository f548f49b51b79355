package prober

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/msg"
)

// Zone is the zone of the names that probes query. The agent answers them with its instance only to the prober and to loopback addresses;
// kube-dns has no names below "invalid".
const Zone = "probe.neardns.invalid."

// Failure is the kind of a probe's failure; the empty string means that it succeeded.
type Failure string

// The kinds of failures. They are label values of a metric.
const (
	None        Failure = ""
	Timeout     Failure = "timeout"      // no answer in time: the server hangs, a packet was dropped, or no host has the address
	Refused     Failure = "refused"      // refused: no process listens there, or a firewall rejects the packets
	WrongAnswer Failure = "wrong-answer" // not this agent's: from another server, as by the fallback, from another agent, or not valid
	Slow        Failure = "slow"         // answered, but later than the caller accepts; the caller sets it, Probe never does
	Network     Failure = "network"      // any other error: for example, the query could not be sent, or the connection broke
	Canceled    Failure = "canceled"     // the caller gave up; no result
)

// Result is the result of one probe. The caller compares Instance with its own, because another agent may have answered, or a resolver
// that makes up TXT records.
type Result struct {
	Instance string        // instance of the agent that answered, as its TXT record has it; set if and only if the probe succeeded
	Failure  Failure       // None if the probe succeeded
	Err      error         // why the probe failed, for logs and status
	Took     time.Duration // from making the query until the answer or the failure
}

// A query in wire format, with the fields by which its answer is recognized.
type question struct {
	wire  []byte
	name  string
	start time.Time
}

// newQuestion makes the query of a probe or a pod trial, for a random name that was never queried before. So no cache on the path can
// answer, and a late answer to an earlier query never counts for this one. Recursion is not desired, so that a resolver to which kube-dns
// forwards a query that fell back does not resolve it.
func newQuestion() question {
	nonce := rand.Uint64() //nolint:gosec // unique is enough, because only the switch can deliver an answer to this netns
	q, err := newQuery(fmt.Sprintf("%016x.%s", nonce, Zone), dns.TypeTXT, false)
	if err != nil {
		panic(err) // cannot happen: a name of this form always packs
	}
	return q
}

// Trial is the query of a pod trial, for a random name in Zone. If a pod sends it, the agent answers NXDOMAIN without an upstream. So an
// answer from the agent's address shows that the pod's path to the agent works, whether or not the upstreams answer. Any other query might
// be forwarded, even one of class CHAOS.
type Trial struct{ q question }

// NewTrial returns a Trial with a new random name.
func NewTrial() Trial { return Trial{newQuestion()} }

// Wire is the message to send.
func (t Trial) Wire() []byte { return t.q.wire }

// Answered reports whether packet is the answer to this query.
func (t Trial) Answered(packet []byte) bool { return t.q.matches(packet) }

// addressQuestion makes a query for name's address in the IP family of server, as a pod would send it, but with the CD bit (RFC 4035,
// section 3.2.2): the kernel program does not answer such queries, and non-validating servers ignore the bit. So an answer comes from the
// server that pods' packets reach.
func addressQuestion(name string, server netip.Addr) (question, error) {
	kind := dns.TypeA
	if server.Is6() {
		kind = dns.TypeAAAA
	}
	return newQuery(dns.Fqdn(name), kind, true)
}

func newQuery(name string, kind uint16, recurse bool) (question, error) {
	m := new(dns.Msg).SetQuestion(name, kind)
	m.RecursionDesired, m.CheckingDisabled = recurse, recurse
	wire, err := m.Pack()
	if err != nil {
		return question{}, fmt.Errorf("encode the query for %q: %w", name, err)
	}
	return question{wire: wire, name: name, start: time.Now()}, nil
}

// matches reports whether packet answers this query: the same ID, the response bit and the same question section. Other packets on the
// socket answer earlier queries: one that was canceled, or one that was repeated. It compares bytes without parsing, because it is called
// for each packet.
func (q question) matches(packet []byte) bool {
	return len(packet) >= len(q.wire) && msg.ID(packet) == msg.ID(q.wire) && msg.IsResponse(packet) &&
		bytes.EqualFold(packet[msg.HeaderSize:len(q.wire)], q.wire[msg.HeaderSize:])
}

// judge turns the answer to a probe, or the error instead of one, into a Result.
func (q question) judge(packet []byte, err error) Result {
	r := Result{Took: time.Since(q.start)}
	if err != nil {
		r.Failure, r.Err = explainProbe(err)
		return r
	}
	m, err := q.parse(packet)
	if err != nil {
		r.Failure, r.Err = WrongAnswer, err
		return r
	}
	for _, rr := range m.Answer {
		if txt, ok := rr.(*dns.TXT); ok && strings.EqualFold(txt.Hdr.Name, q.name) && strings.Join(txt.Txt, "") != "" {
			r.Instance = strings.Join(txt.Txt, "")
			return r
		}
	}
	r.Failure, r.Err = WrongAnswer, fmt.Errorf("answered %s by another server than the agent; the query took the fallback", rcodeText(m))
	return r
}

// checkAnswer returns nil if packet is an answer to the query with NOERROR or NXDOMAIN, which only a working resolver gives.
func (q question) checkAnswer(packet []byte, err error) error {
	if err != nil {
		return err
	}
	m, err := q.parse(packet)
	if err == nil && m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		err = fmt.Errorf("kube-dns answered %s to %s", rcodeText(m), q.name)
	}
	return err
}

// parse returns the message in packet, or an error if packet does not answer this query.
func (q question) parse(packet []byte) (*dns.Msg, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packet); err != nil {
		return nil, fmt.Errorf("the answer is not DNS: %w", err)
	}
	if !q.matches(packet) {
		return nil, errors.New("the answer belongs to another query")
	}
	return m, nil
}

func rcodeText(m *dns.Msg) string {
	if text, ok := dns.RcodeToString[m.Rcode]; ok {
		return text
	}
	return fmt.Sprintf("rcode %d", m.Rcode)
}

// explainProbe returns the kind of a probe's error, and its text. The usual failures have constant texts, so that the caller logs each
// reason once.
func explainProbe(err error) (Failure, error) {
	switch {
	case errors.Is(err, context.Canceled):
		return Canceled, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout, errors.New("no answer: the agent hangs, or a firewall on this node (INPUT chain) drops pods' packets to it")
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused, errors.New("refused: no process listens there, or a firewall on this node (INPUT chain) rejects pods' packets to it")
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES):
		// If a firewall rejects packets with ICMP "administratively prohibited", the socket returns EHOSTUNREACH in IPv4, EACCES in IPv6.
		return Network, fmt.Errorf("rejected: a firewall on this node (INPUT chain) rejects pods' packets to the agent: %w", err)
	}
	return Network, err
}

// explainFallback gives the usual errors of CheckFallback constant texts with their likely cause.
func explainFallback(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("no answer: check that kube-proxy (or its replacement) runs on this node, and that kube-dns is up")
	case errors.Is(err, unix.ECONNREFUSED):
		return errors.New("refused: the kube-dns Service has no endpoint, or kube-dns does not listen")
	}
	return err
}
