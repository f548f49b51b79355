package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTornReads: while one writer changes an answer all the time, each reader sees one of its two forms and never a mixture. If the forms
// need slots of two sizes, a query may pass unanswered at the moment of the change.
func TestTornReads(t *testing.T) {
	l := open(t, 2)
	for _, c := range []struct {
		name    string
		records [2]int
		passes  bool
	}{{"large", [2]int{40, 12}, false}, {"small", [2]int{1, 8}, false}, {"both", [2]int{40, 1}, true}} {
		t.Run(c.name, func(t *testing.T) { tornReads(t, l, c.records, c.passes) })
	}
}

func tornReads(t *testing.T, l *Level, records [2]int, passes bool) {
	const name = "torn.example."
	forms := make([]Answer, 2)
	for i := range forms {
		var lines []string
		for n := range records[i] {
			lines = append(lines, fmt.Sprintf("%s 30 IN A 10.%d.%d.%d", name, i, n, 255*i))
		}
		forms[i] = answerOf(t, name, dns.TypeA, nil, lines...)
		forms[i].FixedTTL = uint32(1 + i*0x01010100)
	}
	frame := packet(false, partial, ask(t, name, dns.TypeA, withOPT(1232)))
	var want [2][]byte
	for i, a := range forms {
		want[i] = replyWanted(payloadOf(frame), a)
	}
	put(t, l, forms[0])
	defer during(t, func(i int) error { return l.Put(&forms[i%2]) })()
	var seen [2]int
	const least = 100
	for tried := 0; tried < 10000 || min(seen[0], seen[1]) < least; tried++ {
		action, out := run(t, l, frame, nil)
		if action == unspec && passes {
			continue
		}
		if action != redirect {
			t.Errorf("action %d", int32(action))
			break
		}
		switch got := payloadOf(out); {
		case bytes.Equal(got, want[0]):
			seen[0]++
		case bytes.Equal(got, want[1]):
			seen[1]++
		default:
			t.Fatalf("a mixture: %x", got)
		}
	}
}

// during calls f with 0, 1, 2 and so on alongside the test, until end is called.
func during(t *testing.T, f func(i int) error) (end func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		for i := 0; err == nil && !done.Load(); i++ {
			err = f(i)
		}
		testutil.Check(t, err)
	})
	return func() {
		done.Store(true)
		wg.Wait()
	}
}

// TestMoves: an answer moves between slots of both sizes and leaves none behind.
func TestMoves(t *testing.T) {
	l := open(t, 8)
	const name = "sizes.example."
	frame := packet(false, partial, ask(t, name, dns.TypeA, withOPT(1232)))
	small, large := len(l.free[0]), len(l.free[1])
	var last Answer
	for i, records := range []int{1, 9, 10, 40, 70, 2, 70, 8, 9} { // of 10 addresses the TTLs' places fit no more
		last = answerOf(t, name, dns.TypeA, nil, many(name+" 30 IN A 192.0.2.", records)...)
		put(t, l, last)
		wantAnswered(t, l, frame, last)
		inSmall := records < 10
		if got := [2]int{small - len(l.free[0]), large - len(l.free[1])}; len(l.byPlace) != 1 || inSmall && got != [2]int{1, 0} || !inSmall && got != [2]int{0, 1} {
			t.Fatalf("step %d, %d records: %d answers, slots %d", i, records, len(l.byPlace), got)
		}
	}
	testutil.Must(t, l.Remove(last.Key))
	wantPassed(t, l, frame, nil)
	if len(l.byPlace) != 0 || len(l.free[0]) != small || len(l.free[1]) != large {
		t.Errorf("after Remove: %d answers, free %d", len(l.byPlace), []int{len(l.free[0]), len(l.free[1])})
	}
	testutil.Must(t, l.objects.Smalls.Close()) // so that no slot can be written
	if err := l.Put(&last); err == nil || len(l.free[0]) != small {
		t.Errorf("after a failed write (%v) %d slots are free, of %d", err, len(l.free[0]), small)
	}
}

// TestFull: a bucket with eight answers takes no ninth, and one that becomes longer than any free slot is removed. The others stay.
// Once an answer is removed, there is room.
func TestFull(t *testing.T) {
	l := open(t, 64)
	var frames [][]byte
	var answers []Answer
	var bucket uint32
	for i := 0; len(frames) < 9; i++ {
		a, frame := numbered(t, i)
		at := bucketOf(t, l, &a)
		if i == 0 {
			bucket = at
		}
		if at == bucket {
			frames, answers = append(frames, frame), append(answers, a)
		}
	}
	wantFull := func(a Answer) {
		t.Helper()
		if err := l.Put(&a); !errors.Is(err, ErrFull) {
			t.Errorf("%v, want ErrFull", err)
		}
	}
	for _, a := range answers[:8] {
		put(t, l, a)
	}
	wantFull(answers[8])
	wantPassed(t, l, frames[8], nil)
	for i, frame := range frames[:8] {
		wantAnswered(t, l, frame, answers[i])
	}
	testutil.Must(t, l.Remove(answers[0].Key))
	put(t, l, answers[8])
	wantAnswered(t, l, frames[8], answers[8])

	l = open(t, 4) // with one long slot
	long := func(name string) Answer {
		return answerOf(t, name, dns.TypeA, nil, many(name+" 30 IN A 192.0.2.", 40)...)
	}
	put(t, l, long("first.example."))
	wantFull(long("second.example."))
	grows, frame := numbered(t, 0)
	put(t, l, grows)
	wantAnswered(t, l, frame, grows)
	wantFull(long("name-0.example."))
	wantPassed(t, l, frame, nil)
	testutil.Equal(t, "free short slots", 4, len(l.free[0]))
}

// TestReusedSlot: two answers take one slot in turn. Neither query ever gets the other's answer.
func TestReusedSlot(t *testing.T) {
	l := open(t, 1)
	var answers [2]Answer
	var frames, want [2][]byte
	for i, name := range []string{"one.example.", "two.example."} {
		answers[i] = answerOf(t, name, dns.TypeA, nil, fmt.Sprintf("%s 30 IN A 192.0.2.%d", name, i))
		answers[i].FixedTTL = 9
		frames[i] = packet(false, partial, ask(t, name, dns.TypeA, nil))
		want[i] = replyWanted(payloadOf(frames[i]), answers[i])
	}
	defer during(t, func(i int) error { return errors.Join(l.Remove(answers[1-i%2].Key), l.Put(&answers[i%2])) })()
	var hits [2]int
	for i := 0; i < 40000 || min(hits[0], hits[1]) == 0; i++ {
		action, out := run(t, l, frames[i%2], nil)
		if action == unspec {
			continue
		}
		if got := payloadOf(out); !bytes.Equal(got, want[i%2]) {
			t.Fatalf("question %d was answered with %x", i%2, got)
		}
		hits[i%2]++
	}
}

// numbered makes an answer and the frame of its query.
func numbered(t testing.TB, i int) (Answer, []byte) {
	t.Helper()
	name := fmt.Sprintf("name-%d.example.", i)
	return answerOf(t, name, dns.TypeA, nil, fmt.Sprintf("%s 30 IN A 10.0.%d.%d", name, i>>8, i&0xff)),
		packet(false, partial, ask(t, name, dns.TypeA, nil))
}

// bucketOf is the bucket of an answer.
func bucketOf(t testing.TB, l *Level, a *Answer) uint32 {
	t.Helper()
	var s objectSlot
	testutil.Must(t, s.fill(a))
	return uint32(l.control.place(s.hash(&l.control)))
}

// TestHits: the hits of each answer are reported once, with the right name and type.
func TestHits(t *testing.T) {
	l := open(t, 8)
	want := map[string]uint64{}
	for i := range 5 {
		a, frame := numbered(t, i)
		a.Series = uint16(10 + i)
		put(t, l, a)
		for range i {
			run(t, l, frame, nil)
		}
		q := a.Key.Question()
		want[string(q)] = uint64(i)
	}
	for range 2 {
		err := l.Hits(func(q string, hits uint64) {
			if want[q] != hits || hits == 0 {
				t.Errorf("%q: %d hits, want %d", q, hits, want[q])
			}
			delete(want, q)
		})
		testutil.Must(t, err)
	}
	if len(want) != 1 {
		t.Errorf("not told: %v", want)
	}
	next := openIn(t, filepath.Dir(l.folder), 8)
	for i := range 8 { // in every slot
		a, _ := numbered(t, i)
		put(t, next, a)
		if n, err := next.HitsOf(a.Key); err != nil || n != 0 {
			t.Errorf("the next process reports %d earlier hits, %v", n, err)
		}
	}
	counts, err := l.Counts()
	testutil.Must(t, err)
	for i := range 5 {
		if counts[10+i] != uint64(i) {
			t.Errorf("series %d: %d hits, want %d", 10+i, counts[10+i], i)
		}
	}
}

// TestHitsOf: the hits of one answer are reported once, by Hits or by HitsOf.
func TestHitsOf(t *testing.T) {
	l := open(t, 8)
	a, frame := numbered(t, 1)
	b, other := numbered(t, 2)
	put(t, l, a)
	of := func(a Answer, want uint64) {
		t.Helper()
		if got, err := l.HitsOf(a.Key); err != nil || got != want {
			t.Errorf("%d hits, %v; want %d", got, err, want)
		}
	}
	of(a, 0)
	for range 3 {
		run(t, l, frame, nil)
	}
	of(a, 3)
	of(a, 0)
	of(b, 0) // not there
	run(t, l, frame, nil)
	put(t, l, b)
	run(t, l, other, nil)
	told := uint64(0)
	if err := l.Hits(func(_ string, hits uint64) { told += hits }); err != nil || told != 2 {
		t.Errorf("%d hits, %v", told, err)
	}
	of(a, 0)
	of(b, 0)
	run(t, l, frame, nil)
	testutil.Must(t, l.Remove(a.Key))
	of(a, 0)
}

// TestInvalidateBeside: one process's Invalidate revokes answers that another process put after an Invalidate that the first does not know.
func TestInvalidateBeside(t *testing.T) {
	l := open(t, 8)
	other := openIn(t, filepath.Dir(l.folder), 8)
	testutil.Must(t, other.Invalidate())
	a, frame := numbered(t, 1)
	put(t, other, a)
	wantAnswered(t, l, frame, a)
	testutil.Must(t, l.Invalidate())
	wantPassed(t, l, frame, nil)
}

// TestServe: only queries to the addresses and ports of the latest Serve are answered, and others are not counted.
func TestServe(t *testing.T) {
	l := open(t, 8)
	a, frame := numbered(t, 1)
	put(t, l, a)
	high := bytes.Clone(frame)
	binary.BigEndian.PutUint16(high[14+20+2:], 5353)
	wantAnswered(t, l, frame, a)
	wantPassed(t, l, high, nil)
	testutil.Must(t, l.Serve([]netip.AddrPort{netip.AddrPortFrom(server4, 5353)}))
	wantPassed(t, l, frame, nil)
	wantAnswered(t, l, high, a)
	testutil.Must(t, l.Serve([]netip.AddrPort{at53(server6)}))
	wantPassed(t, l, frame, nil)
	wantPassed(t, l, high, nil)
	testutil.Equal(t, "passed as unknown", 0, passed(t, l)[Unknown])
}

// TestUnfit: an answer that the program cannot serve is refused, and the answer that it would replace is removed.
func TestUnfit(t *testing.T) {
	l := open(t, 8)
	const name = "unfit.example."
	good := answerOf(t, name, dns.TypeA, nil, name+" 30 IN A 192.0.2.1")
	frame := packet(false, partial, ask(t, name, dns.TypeA, nil))
	serving := func(rcode int) func(*dns.Msg) { return func(m *dns.Msg) { m.Rcode = rcode } }
	dnssec := answerOf(t, name, dns.TypeA, nil, name+" 30 IN A 192.0.2.1")
	dnssec.Key.Set(ask(t, name, dns.TypeA, nil)[12:], true, false)
	last := answerOf(t, name, dns.TypeA, nil, many(name+" 30 IN A 192.0.2.", 76)...)
	last.Rotate = true
	late := good
	late.Series = SeriesMost + 1
	for what, a := range map[string]Answer{
		"SERVFAIL": answerOf(t, name, dns.TypeA, serving(dns.RcodeServerFailure)),
		"REFUSED":  answerOf(t, name, dns.TypeA, serving(dns.RcodeRefused)),
		"nothing":  answerOf(t, name, dns.TypeA, nil),
		"many":     answerOf(t, name, dns.TypeA, nil, many(name+" 30 IN A 192.0.2.", 81)...),
		"large":    answerOf(t, name, dns.TypeAAAA, nil, many(name+" 30 IN AAAA 2001:db8::", 80)...),
		"last":     last, // 1,216 bytes fit, and are not rotated
		"series":   late,
	} {
		put(t, l, good)
		if err := l.Put(&a); !errors.Is(err, ErrUnfit) {
			t.Errorf("%s: %v", what, err)
		}
		if what != "large" {
			wantPassed(t, l, frame, nil)
		}
	}
	last.Rotate = false
	put(t, l, last)
	if err := l.Put(&dnssec); !errors.Is(err, ErrUnfit) {
		t.Errorf("DO: %v", err)
	}
}

// TestOpenErrors: a folder that is of no BPF file system is named, with the remedy.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(Options{Folder: filepath.Join(dir, "neardns")})
	testutil.Equal(t, "error", dir+" is no BPF file system: mount one there (mount -t bpf bpf "+dir+")", fmt.Sprint(err))
}
