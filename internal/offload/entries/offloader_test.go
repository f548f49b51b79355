package entries

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// stand is an Offloader with a store, a fakeKernel and one source. A test changes its fields between steps.
type stand struct {
	t          *testing.T
	store      *answers.Store
	space      *answers.Space
	offloader  *Offloader
	fakeKernel *fakeKernel
	source     *Source
	until      time.Duration // how long after it was stored the source serves an entry
	valid      bool
}

func newStand(t *testing.T, most int, k *fakeKernel) *stand {
	s := &stand{t: t, store: answers.NewStore(0), fakeKernel: k, until: time.Hour, valid: true}
	s.space, s.offloader = s.store.Space(1), New(s.store, most)
	s.build()
	return s
}

// onStand returns a test with a running Offloader, for a bubble of synctest.
func onStand(most int, f func(s *stand)) func(t *testing.T) {
	return func(t *testing.T) {
		s := newStand(t, most, newFakeKernel())
		testutil.Must(t, s.offloader.Begin(s.fakeKernel))
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.offloader.Run(ctx) })
		f(s)
		end()
		wg.Wait()
	}
}

// build makes a Corefile server that answers from now on.
func (s *stand) build() {
	s.source = s.offloader.Source(Source{Space: s.space, Gap: time.Minute, ValidUntil: func(e, _, _ *answers.Entry, _ answers.Instant) (answers.Instant, bool) {
		return e.Stored() + answers.Instant(s.until), s.valid
	}})
	s.offloader.Changed()
}

// keep puts an answer with a TTL of a minute into the store.
func (s *stand) keep(name string) *answers.Entry {
	s.t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Response = true
	b, err := m.Pack()
	testutil.Must(s.t, err)
	var k msg.Key
	k.Set(b[12:], false, false)
	e, err := answers.NewEntry(&k, answers.Success, b, 60)
	testutil.Must(s.t, err)
	s.space.Put(&k, e)
	return e
}

// hit counts two hits of e, as the fast path does; at the second one e is offered.
func (s *stand) hit(e *answers.Entry) {
	for range 2 {
		if s.source.Enabled() {
			s.source.Offer(e, s.store.Now(), 1232)
		}
	}
	synctest.Wait()
}

// hits sets how often the kernel has answered a query.
func (s *stand) hits(q string, n uint64) {
	s.fakeKernel.mu.Lock()
	defer s.fakeKernel.mu.Unlock()
	s.fakeKernel.hits[q] = n
}

// poll lets the Offloader read the hits.
func (s *stand) poll() {
	<-time.After(pollEvery)
	synctest.Wait()
}

// has fails the test if the fakeKernel has other names.
func (s *stand) has(when, want string) {
	s.t.Helper()
	if got := s.fakeKernel.names(); got != want {
		s.t.Errorf("%s: the kernel has %q, want %q", when, got, want)
	}
}

func TestOffload(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		e := s.keep("a.")
		<-time.After(10 * time.Second)
		s.source.Offer(e, s.store.Now(), 1232)
		synctest.Wait()
		s.has("after one hit", "")
		s.source.Offer(e, s.store.Now(), 1232)
		synctest.Wait()
		s.has("after two", "a")
		l := s.fakeKernel.has["\x01a\x00\x00\x01\x00\x01"]
		now := s.fakeKernel.Now()
		if l.Entry != e || l.Expires != now+50*time.Second || l.Until != now+MaxTime || l.Size != 1232 {
			t.Errorf("the loan %+v at %s", l, now)
		}
		s.until = 45 * time.Second
		other := s.keep("b.")
		s.hit(other)
		if l := s.fakeKernel.has["\x01b\x00\x00\x01\x00\x01"]; l.Until != s.fakeKernel.Now()+MaxTime {
			t.Errorf("until %s", l.Until-s.fakeKernel.Now())
		}
		s.until = 20 * time.Second
		third := s.keep("c.")
		s.hit(third)
		if l := s.fakeKernel.has["\x01c\x00\x00\x01\x00\x01"]; l.Until != s.fakeKernel.Now()+20*time.Second {
			t.Errorf("to be fetched anew in %s", l.Until-s.fakeKernel.Now())
		}
	}))
}

// TestRevoke: no entry stays offloaded after the store has replaced or dropped it, or would no longer serve it.
func TestRevoke(t *testing.T) {
	for name, end := range map[string]func(s *stand, e *answers.Entry){
		"replaced":     func(s *stand, _ *answers.Entry) { s.keep("a.") },
		"removed":      func(s *stand, e *answers.Entry) { s.space.Remove(e) },
		"other chain":  func(s *stand, _ *answers.Entry) { s.build() },
		"ended":        func(s *stand, _ *answers.Entry) { _ = s.offloader.End() },
		"time is over": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, onStand(10, func(s *stand) {
				e := s.keep("a.")
				s.hit(e)
				s.has("before", "a")
				if end != nil {
					end(s, e)
				} else {
					<-time.After(MaxTime + pollEvery)
				}
				s.has("after", "")
				testutil.Equal(t, "offloaded", 0, s.offloader.State().Items)
			}))
		})
	}
}

// TestReplacedMeanwhile: if an entry is replaced while it is being revoked, the replacement waits until the kernel has removed the old one.
func TestReplacedMeanwhile(t *testing.T) {
	for name, takeBack := range map[string]func(s *stand){
		"ended":        func(s *stand) { _ = s.offloader.End() },
		"other chain":  (*stand).build,
		"time is over": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, onStand(10, func(s *stand) {
				s.hit(s.keep("a."))
				replaced := make(chan struct{})
				begun := sync.OnceFunc(func() {
					go func() {
						s.keep("a.")
						close(replaced)
					}()
					for range 10_000 {
						runtime.Gosched()
					}
					select {
					case <-replaced:
						t.Error("the cache said another answer before the kernel had forgotten the old one")
					default:
					}
				})
				s.fakeKernel.mu.Lock()
				s.fakeKernel.begun = begun
				s.fakeKernel.mu.Unlock()
				if takeBack != nil {
					takeBack(s)
				} else {
					<-time.After(MaxTime + pollEvery)
				}
				<-replaced
				s.has("after", "")
			}))
		})
	}
}

// TestAgain: a hit after the offload's time is over offloads the entry again. An entry that replaces it is offloaded at its first hit.
func TestAgain(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		e := s.keep("a.")
		s.hit(e)
		<-time.After(MaxTime)
		s.source.Offer(e, s.store.Now(), 512)
		synctest.Wait()
		if l := s.fakeKernel.has["\x01a\x00\x00\x01\x00\x01"]; l.Until != s.fakeKernel.Now()+30*time.Second || l.Size != 512 {
			t.Errorf("offloaded again until %s", l.Until-s.fakeKernel.Now())
		}
		next := s.keep("a.")
		s.has("replaced", "")
		s.source.Offer(next, s.store.Now(), 512)
		synctest.Wait()
		s.has("the next one, at its first hit", "a")
	}))
}

// TestNotOffloaded: an entry that the fast path would not serve, or no longer, is not offloaded.
func TestNotOffloaded(t *testing.T) {
	for name, before := range map[string]func(s *stand, e *answers.Entry){
		"the source finds it invalid":                        func(s *stand, _ *answers.Entry) { s.valid = false },
		"it would be fetched anew now":                       func(s *stand, _ *answers.Entry) { s.until = 0 },
		"the chain is another":                               func(s *stand, _ *answers.Entry) { old := s.source; s.build(); s.source = old },
		"it was replaced":                                    func(s *stand, _ *answers.Entry) { s.keep("a.") },
		"the machine slept, and the store does not know yet": func(s *stand, _ *answers.Entry) { s.fakeKernel.slept += time.Minute },
		"the kernel does not take it":                        func(s *stand, _ *answers.Entry) { s.fakeKernel.err = errors.New("too large") },
		"ended":                                              func(s *stand, _ *answers.Entry) { _ = s.offloader.End() },
		"left":                                               func(s *stand, _ *answers.Entry) { s.offloader.Leave() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, onStand(10, func(s *stand) {
				e := s.keep("a.")
				before(s, e)
				s.hit(e)
				s.has("", "")
			}))
		})
	}
}

// TestOfferedAgain: an entry for which the kernel had no room is offered again at a later hit (D-077).
func TestOfferedAgain(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		e := s.keep("a.")
		s.fakeKernel.err = errors.New("no room")
		s.hit(e)
		s.has("", "")
		s.fakeKernel.err = nil
		time.Sleep(pollEvery)
		s.hit(e)
		s.has("", "a")
	}))
}

// TestSleep: once the store's clock is corrected after a sleep, entries are offloaded again, with their true remaining TTL.
func TestSleep(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		e := s.keep("a.")
		s.fakeKernel.slept += 20 * time.Second
		s.store.Slept(20 * time.Second)
		s.hit(e)
		if l := s.fakeKernel.has["\x01a\x00\x00\x01\x00\x01"]; l.Expires != s.fakeKernel.Now()+40*time.Second {
			t.Errorf("expires in %s", l.Expires-s.fakeKernel.Now())
		}
	}))
}

// TestFull: without a free slot, an entry without recent hits is evicted, and one in use is not.
func TestFull(t *testing.T) {
	synctest.Test(t, onStand(1, func(s *stand) {
		a, b := s.keep("a."), s.keep("b.")
		s.hit(a)
		s.hit(b)
		s.has("a was not asked for", "b")
		s.hits("\x01b\x00\x00\x01\x00\x01", 7)
		s.poll()
		s.hit(a)
		s.has("b was", "b")
		s.poll()
		s.hit(a)
		s.has("b was not any more", "a")
	}))
}

// TestHeat: the kernel's hits count for popularity like the agent's.
func TestHeat(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		e := s.keep("a.")
		s.hit(e)
		s.hits("\x01a\x00\x00\x01\x00\x01", 4)
		s.poll()
		testutil.Equal(t, "hits with the next one", 5, e.Hits(s.store.Now(), time.Minute))
		s.poll()
		testutil.Equal(t, "hits that are read twice", 5, e.Hits(s.store.Now(), time.Minute))
	}))
}

// TestCountHits: CountHits adds the kernel's hits at once, and the next Poll does not count them a second time.
func TestCountHits(t *testing.T) {
	synctest.Test(t, onStand(2, func(s *stand) {
		const q = "\x01a\x00\x00\x01\x00\x01"
		e := s.keep("a.")
		s.hits(q, 50)
		s.source.CountHits(e) // it is not offloaded
		if n, _ := e.Heat(); n != 0 {
			t.Errorf("%d hits of what is not offloaded", n)
		}
		s.hit(e)
		<-time.After(time.Second)
		s.source.CountHits(e)
		if n, last := e.Heat(); n != 50 || time.Duration(s.store.Now()-last) >= time.Millisecond {
			t.Errorf("%d hits, the last one %s ago", n, time.Duration(s.store.Now()-last))
		}
		s.source.CountHits(e)
		if n, _ := e.Heat(); n != 50 {
			t.Errorf("%d hits, told twice", n)
		}
		s.hit(s.keep("b."))
		s.poll()
		if n, _ := e.Heat(); n != 50 {
			t.Errorf("%d hits after a look", n)
		}
		s.hit(s.keep("c.")) // in the place of an entry without hits since the last reading
		if _, there := s.fakeKernel.has[q]; !there {
			t.Error("hits that CountHits counted do not keep an entry offloaded")
		}
		s.poll()
		s.hits("\x01c\x00\x00\x01\x00\x01", 1)
		s.poll()
		s.hit(s.keep("d."))
		if _, there := s.fakeKernel.has[q]; there {
			t.Error("hits that CountHits counted keep an entry offloaded for more than one poll")
		}
		s.hit(e)
		s.hits(q, 1)
		s.fakeKernel.deaf = errors.New("no map")
		s.source.CountHits(e)
		if st := s.offloader.State(); st.Fault == nil || s.source.Enabled() {
			t.Errorf("hits cannot be read: %+v, open %t", st, s.source.Enabled())
		}
	}))
}

// TestFaults: if a kernel fails to revoke an entry, all entries are revoked and nothing is offloaded until the next Begin.
func TestFaults(t *testing.T) {
	synctest.Test(t, onStand(10, func(s *stand) {
		a, b := s.keep("a."), s.keep("b.")
		s.hit(a)
		s.hit(b)
		s.fakeKernel.removeErr = errors.New("no map")
		before := s.fakeKernel.invalidated
		s.space.Remove(a)
		if st := s.offloader.State(); st.Fault == nil || st.Items != 0 || s.source.Enabled() || s.fakeKernel.invalidated != before+1 {
			t.Errorf("%+v, open %t", st, s.source.Enabled())
		}
		s.has("told to forget", "")
		s.fakeKernel.removeErr = nil
		testutil.Must(t, s.offloader.Begin(s.fakeKernel))
		s.hit(b)
		s.has("anew", "b")
		s.fakeKernel.deaf = errors.New("no config map")
		if err := s.offloader.Begin(s.fakeKernel); err == nil || s.source.Enabled() {
			t.Errorf("%v, open %t", err, s.source.Enabled())
		}
	}))
}

// TestNeverWaits: if no goroutine takes offers, they are declined, and nothing is allocated for one.
func TestNeverWaits(t *testing.T) {
	s := newStand(t, 10, new(fakeKernel))
	if s.source.Enabled() {
		t.Error("open before Begin")
	}
	e := s.keep("a.")
	s.source.Offer(e, 0, 512)
	if n := testing.AllocsPerRun(maxOffers+100, func() { s.source.Offer(e, 0, 512); e.Decline() }); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
	testutil.Equal(t, "offers that wait", maxOffers, len(s.offloader.offers))
}

// TestRace has hits, changes, reloads and polls at the same time; at the end every offloaded entry is in the store.
func TestRace(t *testing.T) {
	synctest.Test(t, onStand(8, func(s *stand) {
		var wg sync.WaitGroup
		var current sync.Map
		for i := range 4 {
			wg.Go(func() {
				for n := range 3000 {
					name := string(rune('a'+(n+i)%12)) + "."
					switch n % 7 {
					case 0:
						current.Store(name, s.keep(name))
					case 3:
						s.offloader.Poll()
					default:
						if e, ok := current.Load(name); ok {
							s.source.Offer(e.(*answers.Entry), s.store.Now(), 512) //nolint:errcheck // it is one
						}
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait() // the offers so far are taken
		current.Range(func(_, e any) bool {
			s.source.Offer(e.(*answers.Entry), s.store.Now(), 512) //nolint:errcheck // it is one
			return true
		})
		synctest.Wait()
		s.fakeKernel.mu.Lock()
		defer s.fakeKernel.mu.Unlock()
		if n := len(s.fakeKernel.has); n == 0 || n > 8 {
			t.Errorf("%d answers are offloaded", n)
		}
		for q, l := range s.fakeKernel.has {
			if success, _ := s.space.Peek(l.Key); success != l.Entry {
				t.Errorf("%q: the kernel has another answer than the store", q)
			}
		}
	}))
}
