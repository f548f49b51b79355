package listener

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// FuzzFront sends any bytes to a server: over TCP as they are, in two writes; over UDP as the messages that follow each length, in one
// batch. The fast path answers plain queries for half of all names. Each message gets the same answer as from the DNS library's server, or
// none if that sends none, and the observer gets each query once.
func FuzzFront(f *testing.F) {
	var all []byte
	for i, m := range strange(f) {
		for _, tcp := range []bool{false, true} {
			f.Add(framed(m), uint16(i), tcp)
		}
		all = append(all, framed(m)...)
	}
	for _, name := range []string{"a.example.org.", "b.example.org.", "B.EXAMPLE.org.", "."} {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, true)
		wire := testutil.Packed(f, m)
		for _, tcp := range []bool{false, true} {
			f.Add(bytes.Repeat(framed(wire), 3), uint16(1), tcp)
			f.Add(framed(wire, wire, append(slices.Clone(wire), make([]byte, maxQueryTCP)...), wire), uint16(50), tcp)
			f.Add(append(framed(wire), 0, 200, 1), uint16(2), tcp)
		}
		all = append(all, framed(wire)...)
	}
	f.Add(all[:min(len(all), fuzzMost)], uint16(700), false)
	f.Add(all[:min(len(all), fuzzMost)], uint16(700), true)

	w := new(watcher)
	s, cfg := serve(f, w, &handler{do: answer, first: half{}})
	var handled atomic.Int64 // queries that the library's handler got
	library := testutil.ServeBoth(f, func(w dns.ResponseWriter, r *dns.Msg) {
		if handled.Add(1); len(r.Question) > 0 { // as the handler behind ours
			answer(w, r)
		}
	})
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16, tcp bool) {
		if len(stream) > fuzzMost {
			return
		}
		most := maxQuery
		if tcp {
			most = maxQueryTCP
		}
		messages := split(stream)
		var whole []byte
		for _, m := range messages {
			whole = append(whole, framed(m[:min(len(m), most)])...)
		}
		handled.Store(0)
		want := overTCP(t, library, whole, 0)
		questions := int(handled.Load())
		w.take(t, 0)
		var got [][]byte
		if tcp {
			got = overTCP(t, addressOf(cfg), stream, int(cut))
		} else {
			got = overUDP(t, s, addressOf(cfg), messages, len(want))
			questions += 3 // its own
		}
		for _, answers := range [][][]byte{want, got} {
			slices.SortFunc(answers, bytes.Compare)
		}
		testutil.Equal(t, "answers, the library's wanted", want, got)
		testutil.Equal(t, "queries that the observer got", questions, len(w.take(t, 0)))
	})
}

// fuzzMost is how much is sent at once: less than what a socket holds, and fewer queries than one source's share.
const fuzzMost = 8 << 10

// framed are messages as they go over TCP (RFC 1035, section 4.2.2).
func framed(messages ...[]byte) (out []byte) {
	for _, m := range messages {
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(m))), m...)
	}
	return out
}

// split undoes framed. It drops an incomplete message at the end.
func split(stream []byte) (out [][]byte) {
	for len(stream) >= 2 {
		size := 2 + int(binary.BigEndian.Uint16(stream))
		if size > len(stream) {
			break
		}
		out, stream = append(out, stream[2:size]), stream[size:]
	}
	return out
}

// half answers plain queries if the code of the name's first letter is odd.
type half struct{}

func (half) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	m := new(dns.Msg)
	if !q.Read(q.Wire) || q.Question[min(1, len(q.Question)-1)]%2 == 0 || m.Unpack(q.Wire) != nil {
		return b, queryinfo.Miss, false
	}
	w := new(keeps)
	answer(w, m)
	return append(b, w.got...), queryinfo.Hit, true
}

// keeps is a client that keeps its last answer.
type keeps struct {
	nowhere
	got []byte
}

func (k *keeps) WriteMsg(m *dns.Msg) (err error) {
	k.got, err = m.Pack()
	return err
}

// overTCP writes a stream in two parts and returns all that comes back.
func overTCP(t *testing.T, at string, stream []byte, cut int) [][]byte {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	testutil.Must(t, err)
	defer conn.Close()
	cut = min(cut, len(stream))
	write(t, conn, stream[:cut])
	write(t, conn, stream[cut:])
	testutil.Must(t, conn.(*net.TCPConn).CloseWrite())
	said, err := io.ReadAll(conn)
	testutil.Must(t, err)
	answers := split(said)
	if n := len(framed(answers...)); n != len(said) {
		t.Errorf("the last %d bytes are no answer: %x", len(said)-n, said[n:])
	}
	return answers
}

// overUDP sends messages so that the server reads them in one batch. It returns the answers: the due ones, and others that came until then.
func overUDP(t *testing.T, s *Server, at string, messages [][]byte, due int) (answers [][]byte) {
	t.Helper()
	conn := dialUDP(t, at)
	end := testutil.Packed(t, question("a-question-of-the-test.example.org.", dns.TypeA)) // answered before the chain, so in turn
	buffer := make([]byte, dns.MaxMsgSize)
	next := func() (ours bool) {
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("%d of %d answers: %v", len(answers), due, err)
		}
		if bytes.HasPrefix(buffer[msg.HeaderSize:n], end[msg.HeaderSize:]) {
			return true
		}
		answers = append(answers, slices.Clone(buffer[:n]))
		return false
	}
	s.Pause()
	for _, m := range messages {
		write(t, conn, m)
	}
	s.Resume()
	for range 2 { // once the second one is answered, the chain has all messages
		write(t, conn, end)
		for !next() {
		}
	}
	testutil.WaitFor("nothing is in work", func() bool { return inWork(s) == 0 })
	for len(answers) < due {
		next()
	}
	write(t, conn, end)
	for !next() {
	}
	return answers
}
