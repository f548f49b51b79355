package load

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil"
)

// book makes a book of ten queries per second, each answered in a millisecond more than the one before.
func book(outcomes string) *Book {
	b := &Book{Stream: Stream{Rate: 10, Label: "n", Zone: "z"}, Outcomes: outcomes}
	for i, o := range []byte(outcomes) {
		var took time.Duration
		if Outcome(o) != Lost {
			took = time.Duration(i+1) * time.Millisecond
		}
		b.Took = append(b.Took, took)
	}
	return b
}

func TestSum(t *testing.T) {
	const step = 100 * time.Millisecond
	times := cmpopts.IgnoreFields(Sum{}, "P50", "P99", "P999", "Max")
	for name, c := range map[string]struct {
		outcomes string
		from, to time.Duration
		want     Sum
		line     string
	}{
		"nothing":           {"", 0, time.Hour, Sum{}, ""},
		"all good":          {"ccdc", 0, time.Hour, Sum{Sent: 4, Cache: 3, Direct: 1, Gap: step}, "2c 1d 1c"},
		"one lost":          {"clc", 0, time.Hour, Sum{Sent: 3, Cache: 2, Lost: 1, Gap: 2 * step}, "1c 1l 1c"},
		"no is no answer":   {"cflc", 0, time.Hour, Sum{Sent: 4, Cache: 2, Lost: 1, Failed: 1, Gap: 3 * step}, "1c 1f 1l 1c"},
		"wrong":             {"cwc", 0, time.Hour, Sum{Sent: 3, Cache: 2, Wrong: 1, Gap: 2 * step}, "1c 1w 1c"},
		"lost from the 1st": {"lllc", 0, time.Hour, Sum{Sent: 4, Cache: 1, Lost: 3, Gap: 4 * step}, "3l 1c"},
		"lost to the last":  {"clll", 0, time.Hour, Sum{Sent: 4, Cache: 1, Lost: 3, Gap: 4 * step}, "1c 3l"},
		"all lost":          {"lll", 0, time.Hour, Sum{Sent: 3, Lost: 3, Gap: 4 * step}, "3l"},
		"the longer gap":    {"clcllc", 0, time.Hour, Sum{Sent: 6, Cache: 3, Lost: 3, Gap: 3 * step}, "1c 1l 1c 2l 1c"},
		"a part":            {"lccl", step, 3 * step, Sum{Sent: 2, Cache: 2, Gap: step}, "1l 2c 1l"},
		"an empty part":     {"cc", time.Minute, time.Hour, Sum{}, "2c"},
		"skipped":           {"cscl", 0, time.Hour, Sum{Sent: 3, Cache: 2, Lost: 1, Gap: 2 * step}, "1c 1s 1c 1l"},
	} {
		b := book(c.outcomes)
		got := b.Between(c.from, c.to)
		testutil.Equal(t, name, c.want, got, times)
		if got.Missed() != c.want.Sent-c.want.Cache-c.want.Direct || got.Answered() != c.want.Sent-c.want.Lost {
			t.Errorf("%s: %d missed, %d answered", name, got.Missed(), got.Answered())
		}
		testutil.Equal(t, name+": line", c.line, b.Line())
	}
}

func TestPercentiles(t *testing.T) {
	var many []time.Duration
	for i := 1; i <= 1000; i++ {
		many = append(many, time.Duration(i))
	}
	for _, c := range []struct {
		values []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.5, 7}, {[]time.Duration{7}, 0.999, 7},
		{[]time.Duration{1, 2, 3, 4}, 0.5, 2}, {[]time.Duration{1, 2, 3}, 0.5, 2},
		{many, 0.5, 500}, {many, 0.99, 990}, {many, 0.999, 999}, {many, 1, 1000}, {many, 0, 1},
	} {
		if got := percentile(c.values, c.p); got != c.want {
			t.Errorf("%v of %d values: %d, want %d", c.p, len(c.values), got, c.want)
		}
	}
	// What was lost has no time, and must not make the rest look faster.
	s := book("lllllcccccc").All()
	if s.P50 != 8*time.Millisecond || s.Max != 11*time.Millisecond || s.P99 != s.Max {
		t.Errorf("%+v", s)
	}
	testutil.Equal(t, "slowest", 3*time.Millisecond, book("ccfl").Slowest(0, time.Hour))
}

func TestSkip(t *testing.T) {
	b := book("cclc")
	b.Stream.Names = 2
	b.Skip(func(name string) bool { return name == "n0.z." })
	testutil.Equal(t, "outcomes", "scsc", b.Outcomes)
}

// Every query is sent when it is due, and what the generator was late with is queried at once, none left out.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Stream{Rate: 4}
		begun := time.Now().Add(time.Second)
		var at []time.Duration
		late := s.pace(begun, 2*time.Second, func(i int) {
			at = append(at, time.Since(begun))
			if i == 3 {
				<-time.After(600 * time.Millisecond) // the machine holds it up
			}
		})
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		want := []time.Duration{0, ms(250), ms(500), ms(750), ms(1350), ms(1350), ms(1500), ms(1750)}
		testutil.Equal(t, "queries", want, at)
		testutil.Equal(t, "late by", ms(350), late)
	})
}

// An answer counts if it came within the patience of its sending, once, and its time counts from when it was due.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Stream{Rate: 10}
		l := newLedger(s, time.Now(), 5)
		sleep := func(d time.Duration) { <-time.After(d) }
		sleep(50 * time.Millisecond) // the generator is late with the first
		for i := range 4 {
			l.send(i)
		}
		sleep(20 * time.Millisecond)
		l.answer(0, Cache, "")
		l.answer(0, Wrong, "twice")
		l.answer(1, Failed, "SERVFAIL")
		sleep(980 * time.Millisecond)
		l.answer(2, Direct, "") // in the last moment
		sleep(time.Millisecond)
		l.answer(3, Cache, "") // a moment too late
		l.fault("no way")
		l.send(4)
		begun := time.Now()
		l.wait()
		testutil.Equal(t, "the wait for the last one", time.Second, time.Since(begun))
		b := l.book(0)
		testutil.Equal(t, "outcomes", "cfdll", b.Outcomes)
		want := []time.Duration{70 * time.Millisecond, 1, 850 * time.Millisecond, 0, 0} // the second came before it was due
		testutil.Equal(t, "times", want, b.Took)
		testutil.Equal(t, "reasons", map[string]int{"SERVFAIL": 1, "no way": 1}, b.Reasons)

		l = newLedger(s, time.Now(), 1)
		l.send(0)
		l.answer(0, Cache, "")
		begun = time.Now()
		if l.wait(); time.Since(begun) != 0 {
			t.Error("waits although all is answered")
		}
		for i := range 3 * maxReasons {
			l.fault(itoa(i))
		}
		testutil.Equal(t, "reasons kept", maxReasons, len(l.reasons))
	})
}
