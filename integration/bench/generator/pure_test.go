package generator

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, other Histogram
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(r.Int64N(1 << r.IntN(40)))
		all = append(all, d)
		if i%2 == 0 {
			h.Note(d)
		} else {
			other.Note(d)
		}
	}
	h.Merge(&other)
	slices.Sort(all)
	for _, share := range []float64{0.0001, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[int(share*float64(len(all)))-1]
		if got := h.At(share); got < want || float64(got) > float64(want)*1.016+1 {
			t.Errorf("at %g: %v, want %v", share, got, want)
		}
	}
	data, err := json.Marshal(h)
	testutil.Must(t, err)
	var back Histogram
	if err := json.Unmarshal(data, &back); err != nil || back != h || back.Count() != 10_000 {
		t.Errorf("%v, %d", err, back.Count())
	}
	var none Histogram
	none.Note(-time.Second)
	if none.At(1) != 0 || (&Histogram{}).At(0.5) != 0 {
		t.Error("less than nothing")
	}
	for _, bad := range []string{`[[-1,1]]`, `[[100000,1]]`, `[[1,-1]]`, `{}`} {
		if json.Unmarshal([]byte(bad), &back) == nil {
			t.Errorf("%s passes", bad)
		}
	}
	for b := range len(h.counts) - 1 { // buckets leave no gap
		if bucket(highest(b)) != b || bucket(highest(b)+1) != b+1 {
			t.Fatalf("bucket %d ends at %d", b, highest(b))
		}
	}
}

// right packs the right answer to a query.
func right(t testing.TB, q *workload.Question) []byte {
	t.Helper()
	var m dns.Msg
	testutil.Must(t, m.Unpack(append([]byte{0, 7}, q.Wire...)))
	out, err := workload.Answer(&m).Pack()
	testutil.Must(t, err)
	return out
}

// The right answer to each query of each workload passes, compressed or not; none passes for another query.
func TestCheck(t *testing.T) {
	for _, name := range workload.Names {
		w, err := workload.New(name, 1, true)
		testutil.Must(t, err)
		var before []byte
		for i := range min(len(w.Questions), 40) {
			q := &w.Questions[i]
			answer := right(t, q)
			testutil.Equal(t, name+", "+q.Name, "", check(answer, q, 0))
			var m dns.Msg
			testutil.Must(t, m.Unpack(answer))
			m.Compress = false
			if long, err := m.Pack(); err != nil || check(long, q, 0) != "" {
				t.Errorf("%s, %s: uncompressed: %v %s", name, q.Name, err, check(long, q, 0))
			}
			if before != nil && check(before, q, 0) == "" {
				t.Errorf("%s, %s: takes the answer to the question before", name, q.Name)
			}
			for n := range answer { // cut short
				if n < len(answer)-1 && q.Count > 0 && check(answer[:n], q, 0) == "" && m.IsEdns0() == nil {
					t.Errorf("%s, %s: %d of %d bytes pass", name, q.Name, n, len(answer))
				}
			}
			before = answer
		}
	}
}

// Whatever comes, nothing is read beyond it, and what passes has the query, the code and the data of the right answer.
func FuzzCheck(f *testing.F) {
	var questions []workload.Question
	for _, name := range []string{"W1", "W2", "W4", "W5", workload.Miss} {
		w, err := workload.New(name, 1, true)
		testutil.Must(f, err)
		questions = append(questions, w.Questions[0])
		f.Add(len(questions)-1, right(f, &w.Questions[0]))
	}
	f.Fuzz(func(t *testing.T, n int, answer []byte) {
		q := &questions[uint(n)%uint(len(questions))]
		if check(answer, q, 0) != "" {
			return
		}
		want := right(t, q)
		if end := 2 + q.Length(); string(answer[12:end]) != string(want[12:end]) || answer[3]&0xf != want[3]&0xf || answer[2]&0x80 == 0 {
			t.Errorf("%x passes for %x", answer, want)
		}
	})
}

// The generator sends nothing to addresses that may be another's, and never without bounds.
func TestBounds(t *testing.T) {
	t.Parallel()
	good := Load{Server: netip.MustParseAddrPort("10.96.0.10:53"), Sockets: 1, Window: 1, Count: 1}
	testutil.Check(t, good.check())
	for name, spoil := range map[string]func(*Load){
		"public address": func(l *Load) { l.Server = netip.MustParseAddrPort("192.0.2.1:53") },
		"no address":     func(l *Load) { l.Server = netip.AddrPort{} },
		"rate":           func(l *Load) { l.Rate = 1_000_000 },
		"ids":            func(l *Load) { l.Rate = 20_000 },
		"duration":       func(l *Load) { l.Duration = time.Hour },
		"count":          func(l *Load) { l.Count = 1 << 30 },
		"endless":        func(l *Load) { l.Count = 0 },
		"sockets":        func(l *Load) { l.Sockets = 1000 },
		"window":         func(l *Load) { l.Window = 10_000 },
		"no window":      func(l *Load) { l.Window = 0 },
		"patience":       func(l *Load) { l.Patience = time.Hour },
	} {
		l := good
		spoil(&l)
		if err := l.check(); err == nil {
			t.Errorf("%s: %+v passes", name, l)
		}
	}
}
