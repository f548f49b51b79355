package cache_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// epoch is how far into a bubble's time (which begins in the year 2000) a scenario begins, so that its clock can be
// turned back.
const epoch = 200 * 24 * time.Hour

// runner plays one scenario against one subject.
type runner struct {
	t        *testing.T
	sc       *scenario
	subject  subject
	upstream *scripted
	process  process
	server   *dnsserver.Server
	block    string
	boot     byte            // which boot of the machine it is
	booted   time.Time       // by the bubble's clock, which the scenario's differs from
	failures map[int][]error // by the step's index
}

// play runs the scenario in virtual time and returns the errors of each step. Each process of the scenario has a synctest bubble of its
// own, because only then can its wall clock be earlier than its predecessor's.
func play(t *testing.T, sc *scenario, sub subject) map[int][]error {
	t.Helper()
	r := &runner{t: t, sc: sc, subject: sub, upstream: new(scripted), block: sc.block, failures: make(map[int][]error)}
	before := panics(t)
	var snapshot []byte
	clock, uptime := epoch, time.Hour
	for at := 0; at < len(sc.steps); {
		next := at
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			<-time.After(clock)
			r.t, r.booted = t, time.Now().Add(-uptime)
			r.process = sub.open(t, snapshot, r.clock())
			if err := r.load(r.block); err != nil {
				t.Fatalf("%s: %s: %v", sc.file, sub.name, err)
			}
			for ; next < len(sc.steps); next++ {
				if re := sc.steps[next].restart; re != nil {
					clock, uptime = time.Since(start)+re.after-re.back, time.Since(r.booted)+re.after
					next++
					snapshot = r.end()
					if re.boot {
						r.boot, uptime = r.boot+1, min(re.after, time.Minute)
					}
					if re.cold {
						snapshot = nil
					}
					return
				}
				r.step(next)
			}
			r.end()
		})
		at = next
	}
	testutil.Equal(t, sc.file+": "+sub.name+": panics", before, panics(t))
	return r.failures
}

func (r *runner) load(block string) error {
	server, err := serve(r.process.setup(), block, r.upstream)
	if err == nil {
		r.server, r.block = server, block
	}
	return err
}

// end ends the process, and then gives goroutines in the background the time to end. One that is left when the synctest bubble ends is a
// leak, and makes synctest panic.
func (r *runner) end() []byte {
	synctest.Wait()
	defer func() { <-time.After(time.Minute) }()
	snapshot, err := r.process.snapshot(r.clock())
	testutil.Check(r.t, err, r.sc.file, r.subject.name, "snapshot")
	return snapshot
}

// clock returns the boot's clock, which cannot be set.
func (r *runner) clock() answers.Boot {
	return answers.Boot{ID: [16]byte{1, r.boot}, Since: time.Since(r.booted)}
}

func (r *runner) fail(i int, err error) { r.failures[i] = append(r.failures[i], err) }

func (r *runner) step(i int) {
	s := r.sc.steps[i]
	switch {
	case s.upstream != nil:
		r.upstream.add(s.upstream)
	case s.mood != nil:
		r.upstream.feel(*s.mood)
	case s.wait > 0:
		<-time.After(s.wait)
	case s.reload != "":
		if err := r.load(s.reload); err != nil {
			r.fail(i, err)
		}
	case s.asked != nil:
		if n := r.upstream.count(s.asked); n < s.asked.low || n > s.asked.high {
			r.fail(i, fmt.Errorf("the upstream was asked %d times", n))
		}
	case s.ask != nil:
		r.ask(i, s.ask)
	}
	synctest.Wait()
	for _, c := range r.upstream.complaints() {
		r.fail(i, errors.New(c))
	}
}

func (r *runner) ask(i int, a *ask) {
	for n, name := range a.names {
		q := a.message(name, uint16(1+(i*7919+n)%65535))
		replies, errs := make([]reply, a.clients), make([]error, a.clients)
		var wg sync.WaitGroup
		client := func(c int) {
			if replies[c], errs[c] = put(r.server, q.Copy(), a.tcp); errs[c] == nil {
				errs[c] = a.check(q, replies[c])
			}
		}
		for c := range a.clients - 1 {
			wg.Go(func() { client(c) })
		}
		client(a.clients - 1)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			r.fail(i, fmt.Errorf("%w\ngot after %v: %v", err, replies[0].after, replies[0].msg))
			return
		}
	}
}

// message is the query as it is sent.
func (a *ask) message(name string, id uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, a.qtype)
	m.Question[0].Qclass = a.class
	if a.also != nil {
		m.Question = append(m.Question, *a.also)
	}
	m.Id, m.Opcode, m.RecursionDesired = id, a.opcode, a.rd
	if a.id != 0 {
		m.Id = a.id
	}
	m.CheckingDisabled, m.AuthenticatedData = a.cd, a.ad
	if a.edns != 0 {
		m.SetEdns0(a.edns, a.do)
	}
	return m
}

// faults are what is wrong with a reply.
type faults []error

func (f *faults) add(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// check compares a reply with what holds for every reply, and with the expectation if there is one.
func (a *ask) check(q *dns.Msg, got reply) error {
	want := a.want
	if got.msg == nil {
		if want != nil && want.silent {
			return nil
		}
		return errors.New("no reply")
	}
	err := honest(q, got, a.tcp)
	if want == nil {
		return err
	}
	if want.silent {
		return errors.New("a reply")
	}
	var f faults
	m := got.msg
	f.add(m.Rcode != want.rcode, "want %s, got %s", dns.RcodeToString[want.rcode], dns.RcodeToString[m.Rcode])
	f.add(want.aa != m.Authoritative, "want aa %v, got %v", want.aa, m.Authoritative)
	f.add(want.ad != m.AuthenticatedData, "want ad %v, got %v", want.ad, m.AuthenticatedData)
	f.add(want.tc != m.Truncated, "want tc %v, got %v", want.tc, m.Truncated)
	f.add(want.ra != m.RecursionAvailable, "want ra %v, got %v", want.ra, m.RecursionAvailable)
	f.add(want.source == "cache" && got.after >= latency, "want an answer from the cache, got one after %v", got.after)
	f.add(want.source == "upstream" && got.after < latency, "want an answer from the upstream, got one from the cache")
	f.add(want.within > 0 && got.after > want.within, "want an answer within %v, got it after %v", want.within, got.after)
	f.add(got.after < want.after, "want an answer after %v, got it after %v", want.after, got.after)
	return errors.Join(append(f, want.compare(q.Question[0].Name, m), err)...)
}

// honest checks what holds for every reply, whatever the scenario: it answers this query, in a form that this client can read.
func honest(q *dns.Msg, got reply, tcp bool) error {
	m := got.msg
	var f faults
	f.add(m.Id != q.Id, "id %d, asked with %d", m.Id, q.Id)
	f.add(!m.Response, "no response")
	f.add(m.Opcode != q.Opcode, "opcode %d, asked with %d", m.Opcode, q.Opcode)
	f.add(m.RecursionDesired != q.RecursionDesired, "RD %v, asked with %v", m.RecursionDesired, q.RecursionDesired)
	// RFC 4035, 3.2.2: CD is copied from the query.
	f.add(m.CheckingDisabled != q.CheckingDisabled, "CD %v, asked with %v", m.CheckingDisabled, q.CheckingDisabled)
	f.add(m.Zero, "Z is set")
	if len(q.Question) == 1 { // the name in the very case of the query: clients compare it (0x20)
		f.add(len(m.Question) != 1 || m.Question[0] != q.Question[0], "question %v, asked with %v", m.Question, q.Question)
	}
	asked, opt := q.IsEdns0(), m.IsEdns0()
	// RFC 6891, 6.1.1 and 7: OPT in the answer exactly if it was in the query; RFC 3225, 3: DO as in the query.
	f.add((asked != nil) != (opt != nil), "OPT %v, asked with %v", opt != nil, asked != nil)
	f.add(asked != nil && opt != nil && asked.Do() != opt.Do(), "DO differs from the question's")
	do := asked != nil && asked.Do()
	// RFC 6840, 5.7 and 5.8.
	f.add(m.AuthenticatedData && !do && !q.AuthenticatedData, "AD to a client that showed neither DO nor AD")
	limit := 65535
	if !tcp {
		limit = 512
		if asked != nil {
			limit = max(limit, int(asked.UDPSize()))
		}
	}
	f.add(got.size > limit, "%d bytes to a client that takes %d", got.size, limit)
	if got.after < latency && opt != nil {
		for _, o := range opt.Option {
			f.add(o.Option() == dns.EDNS0COOKIE, "an option of another exchange: %v", o)
		}
	}
	return errors.Join(f...)
}

// compare matches the records of the reply, in any order, with those that are wanted.
func (e *expectation) compare(qname string, m *dns.Msg) error {
	if !e.nonEmpty && e.tc {
		return nil // the records of a truncated answer are of no use to the client
	}
	var errs []error
	sections := [][]dns.RR{append([]dns.RR(nil), m.Answer...), append([]dns.RR(nil), m.Ns...), nil}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			sections[2] = append(sections[2], rr)
		}
	}
	for _, w := range e.records {
		if err := w.take(&sections[w.section], qname); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", w.line, err))
		}
	}
	if !e.partial {
		for _, s := range sections {
			for _, rr := range s {
				errs = append(errs, fmt.Errorf("unexpected record %s", strings.ReplaceAll(rr.String(), "\t", " ")))
			}
		}
	}
	return errors.Join(errs...)
}

// take finds the record among have and takes it out.
func (w record) take(have *[]dns.RR, qname string) error {
	want, wrong := w.rr(qname), ""
	for i, rr := range *have {
		c := dns.Copy(rr)
		c.Header().Ttl = want.Header().Ttl
		if c.String() != want.String() {
			continue
		}
		if ttl := rr.Header().Ttl; ttl < w.low || ttl > w.high {
			wrong = fmt.Sprintf(", its TTL is %d", ttl)
			continue
		}
		*have = append((*have)[:i], (*have)[i+1:]...)
		return nil
	}
	return fmt.Errorf("want %s%s", strings.ReplaceAll(w.text, "\t", " "), wrong)
}
