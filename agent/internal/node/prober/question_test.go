package prober

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// Only an answer to the probe's own query makes it succeed, whatever packet arrives.
func FuzzJudge(f *testing.F) {
	q := newQuestion()
	var m dns.Msg
	testutil.Must(f, m.Unpack(q.wire))
	answer := new(dns.Msg).SetReply(&m)
	f.Add(q.wire)
	f.Add(testutil.Packed(f, answer))
	answer.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{instance}}}
	good := testutil.Packed(f, answer)
	f.Add(good)
	f.Add(good[:len(good)-1])
	if r := q.judge(good, nil); !q.matches(good) || r.Failure != None || r.Instance != instance {
		f.Fatalf("the right answer: mine %v, %+v", q.matches(good), r)
	}
	other := newQuestion()
	if other.matches(good) || other.judge(good, nil).Failure == None {
		f.Fatal("an answer to one question was taken for another's")
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		r := q.judge(packet, nil)
		if (r.Failure == None) != (r.Err == nil) {
			t.Errorf("contradictory result %+v", r)
		}
		if r.Failure == None && !q.matches(packet) {
			t.Errorf("success by an answer to another question: %+v", r)
		}
		_ = q.checkAnswer(packet, nil)
	})
}

func TestProves(t *testing.T) {
	q, err := addressQuestion("kubernetes.default.svc.cluster.local", netip.MustParseAddr("fd00:96::a"))
	testutil.Must(t, err)
	var m dns.Msg
	testutil.Must(t, m.Unpack(q.wire))
	if m.Question[0].Qtype != dns.TypeAAAA || !m.RecursionDesired {
		t.Errorf("the question is not a pod's: %v", &m)
	}
	for code, ok := range map[int]bool{dns.RcodeSuccess: true, dns.RcodeNameError: true, dns.RcodeServerFailure: false, dns.RcodeRefused: false} {
		answer := new(dns.Msg).SetRcode(&m, code)
		wire, err := answer.Pack()
		testutil.Must(t, err)
		if err := q.checkAnswer(wire, nil); (err == nil) != ok {
			t.Errorf("%s: %v", dns.RcodeToString[code], err)
		}
	}
	if err := q.checkAnswer(nil, errors.New("lost")); err == nil {
		t.Error("no answer proves nothing")
	}
	if _, err := addressQuestion("a..b", netip.MustParseAddr("10.96.0.10")); err == nil {
		t.Error("a bad name was asked for")
	}
}
