package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// message is a query for a name in wire form.
func message(name string, opt bool) []byte {
	m := []byte{0xbe, 0xef, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		m = append(append(m, byte(len(label))), label...)
	}
	m = append(m, 0, 0, 1, 0, 1)
	if opt {
		m[11] = 1
		m = append(m, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0)
	}
	return m
}

// fetched counts what is fetched, by the message.
type fetched struct {
	mu  sync.Mutex
	all map[string]int
	err error
	on  chan struct{} // fetches end when it is closed; nil: at once
}

func (f *fetched) fetch(m []byte) error {
	f.mu.Lock()
	if f.all == nil {
		f.all = map[string]int{}
	}
	f.all[string(m)]++
	err, on := f.err, f.on
	f.mu.Unlock()
	if on != nil {
		<-on
	}
	return err
}

func (f *fetched) sum() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, times := range f.all {
		n += times
	}
	return n
}

// together reports whether two names have the same index in Listener.seen, so that it remembers only the later one.
func together(l *Listener, a, b string) bool {
	of := func(name string) uint64 {
		q, _ := msg.Question(message(name, false))
		return l.id(q) % maxSights
	}
	return of(a) == of(b)
}

// TestSecondSight: a name is fetched if it is queried twice within a minute, in whatever case and form, until it is offloaded. It is not
// fetched again at once, and a name that is queried only once is not fetched.
func TestSecondSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fetched
		l := New(f.fetch)
		for together(l, "a.example.", "b.example.") { // one seed in 8,192
			l = New(f.fetch)
		}
		hear := func(m []byte, want int) {
			t.Helper()
			l.Hear(1, m, time.Now())
			l.Wait()
			if got := f.sum(); got != want {
				t.Fatalf("%d fetches, want %d", got, want)
			}
		}
		hear(message("a.example.", false), 0)
		hear(message("b.example.", false), 0)
		hear(message("A.exAmple.", true), fetches)
		hear(message("a.example.", false), fetches)
		time.Sleep(pause)
		hear(message("a.example.", false), 2*fetches)
		time.Sleep(sightTime + time.Second)
		hear(message("a.example.", false), 2*fetches)
		hear(message("a.example.", false), 3*fetches)
		if f.all[string(message("A.exAmple.", true))] != fetches {
			t.Errorf("not as it was asked: %v", f.all)
		}
		if c := l.Counts(); c != (Counts{First: 3, Fetched: 3, Pending: 1}) {
			t.Errorf("%+v", c)
		}
	})
}

// noon is an arbitrary time, from which the tests count.
var noon = time.Unix(1_000_000, 0)

// TestFailure: a fetch whose first query to the cache fails sends no further ones.
func TestFailure(t *testing.T) {
	f := fetched{err: errors.New("no answer")}
	l := New(f.fetch)
	for range 2 {
		l.Hear(1, message("a.example.", false), noon)
	}
	l.Wait()
	if c := l.Counts(); f.sum() != 1 || c != (Counts{First: 1, Fetched: 1}) {
		t.Errorf("%d fetches, %+v", f.sum(), c)
	}
}

// TestFair: while kube-dns is slow, one pod has so many fetches under way, and another pod still gets slots; all together are bounded.
// One name and type is fetched once at a time.
func TestFair(t *testing.T) {
	f := fetched{on: make(chan struct{})}
	l := New(f.fetch)
	now := noon
	ask := func(link, names int) {
		for i := range names {
			for range 3 {
				l.Hear(link, message(fmt.Sprintf("n%d.of-%d.example.", i, link), false), now)
				now = now.Add(pause)
			}
		}
	}
	places := func() map[int]int {
		l.mu.Lock()
		defer l.mu.Unlock()
		out := map[int]int{}
		for link, n := range l.links {
			out[link] = n
		}
		return out
	}
	ask(1, 100)
	ask(2, 5)
	if got := places(); got[1] != maxLinkFetches || got[2] < 4 || got[2] > 5 { // two of a hundred names may fall together
		t.Errorf("places: %v", got)
	}
	for link := 3; link < 20; link++ {
		ask(link, 40)
	}
	all := 0
	for _, n := range places() {
		all += n
	}
	testutil.Equal(t, "fetches at one time", maxFetches, all)
	close(f.on)
	l.Wait()
	if got := places(); len(got) != 0 || len(l.busy) != 0 {
		t.Errorf("left: %v", got)
	}
	// The names of 19 pods, each heard three times: nothing is uncounted, and nothing twice.
	if c := l.Counts(); c.Fetched != maxFetches || c.Dropped == 0 || c.First+c.Fetched+c.Pending+c.Dropped != 3*(100+5+17*40) {
		t.Errorf("%+v", c)
	}
}

func FuzzHear(f *testing.F) {
	f.Add(message("a.example.", true), uint16(3))
	f.Add([]byte{12: 63}, uint16(0))
	f.Add(binary.BigEndian.AppendUint16(make([]byte, 12), 0xc00c), uint16(1))
	f.Fuzz(func(t *testing.T, m []byte, link uint16) {
		q, ok := msg.Question(m)
		if ok && (len(q) < 5 || len(q) > len(m)-12) {
			t.Errorf("%x of %x", q, m)
		}
		l := New(func([]byte) error { return nil })
		for range 3 {
			l.Hear(int(link), m, noon)
		}
		l.Wait()
	})
}
