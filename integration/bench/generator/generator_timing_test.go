//go:build timing

// What a generator counts and measures, next to a server that is scripted: each run sends queries at a rate or for a time.
package generator

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Verb { // the generator is a process of its own: here it is the test binary
		if err := Main(os.Stdin, os.Stdout); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// server answers on loopback as the test has it.
type server struct {
	conn *net.UDPConn
	// answer changes the right answer to query n (from 0); it may send some by itself and returns nil to send no other.
	answer func(n int, right *dns.Msg, send func(*dns.Msg)) *dns.Msg

	mu    sync.Mutex // guards those below
	times []time.Time
	names map[string]int
}

func serve(t *testing.T, answer func(n int, right *dns.Msg, send func(*dns.Msg)) *dns.Msg) *server {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testutil.Must(t, err)
	_ = conn.SetReadBuffer(4 << 20)
	s := &server{conn: conn, answer: answer, names: map[string]int{}}
	var wg sync.WaitGroup
	wg.Go(s.run)
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return s
}

func (s *server) run() {
	buffer := make([]byte, 4096)
	for n := 0; ; n++ {
		size, from, err := s.conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.times = append(s.times, time.Now())
		s.mu.Unlock()
		var m dns.Msg
		if m.Unpack(buffer[:size]) != nil {
			continue
		}
		s.mu.Lock()
		s.names[m.Question[0].Name]++
		s.mu.Unlock()
		send := func(out *dns.Msg) {
			if wire, err := out.Pack(); err == nil {
				_, _ = s.conn.WriteToUDPAddrPort(wire, from)
			}
		}
		out := workload.Answer(&m)
		if s.answer != nil {
			out = s.answer(n, out, send)
		}
		if out != nil {
			send(out)
		}
	}
}

func (s *server) asked() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

// seen is how many names were queried.
func (s *server) seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

func ask(t *testing.T, s *server, l Load) *Result {
	t.Helper()
	return askWith(t, s, l, func(*os.Process) {})
}

// askWith does something to the generator while it queries.
func askWith(t *testing.T, s *server, l Load, meanwhile func(*os.Process)) *Result {
	t.Helper()
	l.Server = s.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	if l.Workload == "" {
		l.Workload = "W1"
	}
	in, err := json.Marshal(l)
	testutil.Must(t, err)
	self, err := os.Executable()
	testutil.Must(t, err)
	cmd := exec.CommandContext(t.Context(), self, Verb)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // the race detector's default is a second at each end
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &stdout, &stderr
	testutil.Must(t, cmd.Start())
	go meanwhile(cmd.Process)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%+v: %v\n%s", l, err, stderr.String())
	}
	var r Result
	testutil.Must(t, json.Unmarshal(stdout.Bytes(), &r))
	if r.Asked != r.Answered+r.Failed+r.Wrong+r.Lost {
		t.Errorf("%+v: %d questions are not what became of them: %+v", l, r.Asked, counts(&r))
	}
	if r.Times.Count() != r.Answered+r.Failed+r.Wrong || r.Lag.Count() != r.Asked || r.Took <= 0 || r.CPU <= 0 {
		t.Errorf("%+v: %d times, %d lags, took %v, %v of CPU time, of %+v", l, r.Times.Count(), r.Lag.Count(), r.Took, r.CPU, counts(&r))
	}
	return &r
}

type tally struct{ Answered, Failed, Wrong, Lost, Late, Unasked int }

func counts(r *Result) tally {
	return tally{r.Answered, r.Failed, r.Wrong, r.Lost, r.Late, r.Unasked}
}

// What is lost, wrong, failed, doubled or unrelated is distinguished. Every tenth answer is spoilt, of 200. What an answer is found to be
// does not depend on the way of sending queries; what is waited for does.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingCounts(t *testing.T) {
	t.Parallel()
	spoil := func(change func(*dns.Msg)) func(*dns.Msg, func(*dns.Msg)) *dns.Msg {
		return func(m *dns.Msg, _ func(*dns.Msg)) *dns.Msg {
			change(m)
			return m
		}
	}
	wrong, lost := tally{Answered: 180, Wrong: 20}, tally{Answered: 180, Lost: 20}
	for name, c := range map[string]struct {
		spoil func(*dns.Msg, func(*dns.Msg)) *dns.Msg
		want  tally
	}{
		"right":      {spoil(func(*dns.Msg) {}), tally{Answered: 200}},
		"none":       {func(*dns.Msg, func(*dns.Msg)) *dns.Msg { return nil }, lost},
		"SERVFAIL":   {spoil(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }), tally{Answered: 180, Failed: 20}},
		"NXDOMAIN":   {spoil(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }), wrong},
		"empty":      {spoil(func(m *dns.Msg) { m.Answer = nil }), wrong},
		"truncated":  {spoil(func(m *dns.Msg) { m.Truncated = true }), wrong},
		"a question": {spoil(func(m *dns.Msg) { m.Response = false }), wrong},
		"case":       {spoil(func(m *dns.Msg) { m.Question[0].Name = "W" + m.Question[0].Name[1:] }), wrong},
		"data": {spoil(func(m *dns.Msg) {
			switch rr := m.Answer[0].(type) {
			case *dns.A:
				rr.A = net.IPv4(10, 97, 0, 99)
			case *dns.AAAA:
				rr.AAAA = net.ParseIP("fd00:61::99")
			}
		}), wrong},
		"doubled": {func(m *dns.Msg, send func(*dns.Msg)) *dns.Msg {
			send(m)
			return m
		}, tally{Answered: 200, Unasked: 20}},
		"foreign id": {spoil(func(m *dns.Msg) { m.Id += 10_000 }), tally{Answered: 180, Lost: 20, Unasked: 20}},
	} {
		for way, l := range map[string]Load{"window": {Sockets: 2, Window: 8, Count: 200}, "rate": {Sockets: 3, Rate: 2000, Count: 200}} {
			l.Patience = 500 * time.Millisecond
			if way == "rate" && c.want == wrong {
				continue
			}
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				s := serve(t, func(n int, right *dns.Msg, send func(*dns.Msg)) *dns.Msg {
					if n%10 != 9 {
						return right
					}
					return c.spoil(right, send)
				})
				got := counts(ask(t, s, l))
				if got.Unasked < c.want.Unasked { // the last answer's double may come when no program reads any more
					got.Unasked++
				}
				testutil.Equal(t, "answers", c.want, got)
			})
		}
	}
}

// An answer that comes after the patience counts as late, and its query as lost.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingLate(t *testing.T) {
	t.Parallel()
	s := serve(t, func(n int, right *dns.Msg, send func(*dns.Msg)) *dns.Msg {
		if n%10 == 9 && n < 500 {
			time.AfterFunc(600*time.Millisecond, func() { send(right) })
			return nil
		}
		return right
	})
	r := ask(t, s, Load{Sockets: 2, Rate: 500, Duration: 2 * time.Second, Patience: 300 * time.Millisecond})
	if got := counts(r); got.Lost != 50 || got.Late != 50 || got.Answered != 950 {
		t.Errorf("%+v", got)
	}
}

// The rate is the configured one: as many queries as are due, none before its time, also from a server that answers nothing.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingRate(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]bool{"answers": false, "no answers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(_ int, right *dns.Msg, _ func(*dns.Msg)) *dns.Msg {
				if drop {
					return nil
				}
				return right
			})
			const rate = 1000
			r := ask(t, s, Load{Sockets: 4, Rate: rate, Duration: time.Second, Patience: time.Second})
			asked := s.asked()
			if r.Asked != rate || len(asked) != rate {
				t.Fatalf("%d questions sent and %d seen in a second, want %d", r.Asked, len(asked), rate)
			}
			for i, at := range asked {
				// The last one sets the scale: a query that the machine held up may be late, but none is early.
				if due := asked[0].Add(time.Duration(i) * time.Second / rate); at.Before(due.Add(-r.Lag.At(1) - 5*time.Millisecond)) {
					t.Fatalf("question %d came %v before it was due", i, due.Sub(at))
				}
			}
			if took := asked[rate-1].Sub(asked[0]); took > 1500*time.Millisecond {
				t.Errorf("1000 questions took %v", took)
			}
			if drop && r.Lost != rate {
				t.Errorf("%+v", counts(r))
			}
		})
	}
}

// A server that stalls is charged for every query that was due meanwhile, not for the ones of a window alone.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingNoCoordinatedOmission(t *testing.T) {
	t.Parallel()
	stall := func(n int, right *dns.Msg, _ func(*dns.Msg)) *dns.Msg {
		if n == 300 {
			<-time.After(400 * time.Millisecond)
		}
		return right
	}
	r := ask(t, serve(t, stall), Load{Sockets: 4, Rate: 1000, Duration: time.Second, Patience: 2 * time.Second})
	if r.Answered != 1000 {
		t.Fatalf("%+v", counts(r))
	}
	// 400 of 1000 queries were due in those 400 ms; three quarters of them waited for more than 100.
	if got := r.Times.At(0.75); got < 100*time.Millisecond {
		t.Errorf("a stall of 400 ms in a second: the slowest quarter waited %v or more", got)
	}
	closed := ask(t, serve(t, stall), Load{Sockets: 1, Window: 1, Count: 1000})
	if got := closed.Times.At(0.99); got > 100*time.Millisecond {
		t.Errorf("one in flight: the slowest hundredth waited %v: this test shows nothing", got)
	}
}

// A generator that the machine held up reports it: its times count from when queries were due, and Lag shows its own part.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingHeldUp(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	held := make(chan struct{})
	r := askWith(t, s, Load{Sockets: 4, Rate: 1000, Duration: time.Second, Patience: 5 * time.Second}, func(p *os.Process) {
		defer close(held)
		for deadline := time.Now().Add(10 * time.Second); len(s.asked()) < 300 && time.Now().Before(deadline); {
			<-time.After(time.Millisecond)
		}
		_ = p.Signal(syscall.SIGSTOP)
		<-time.After(400 * time.Millisecond)
		_ = p.Signal(syscall.SIGCONT)
	})
	<-held
	if r.Answered != 1000 || r.Lag.At(1) < 300*time.Millisecond || r.Times.At(0.75) < 100*time.Millisecond {
		t.Errorf("held up for 400 ms: lag %v, the slowest quarter %v or more, of %+v", r.Lag.At(1), r.Times.At(0.75), counts(r))
	}
}

// Each name of a workload of new names comes once, from the number on that the load has.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingUnique(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	r := ask(t, s, Load{Workload: workload.Miss, Unique: 77, Sockets: 3, Window: 5, Count: 300})
	if r.Answered != 300 || r.Numbered != 300 {
		t.Errorf("%+v, %d names", counts(r), r.Numbered)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.names) != 300 || s.names["new-000000077.bench.svc.cluster.local."] != 1 || s.names["new-000000376.bench.svc.cluster.local."] != 1 {
		t.Errorf("%d names: %v", len(s.names), s.names)
	}
}

// Every query of a workload once, to warm a cache up.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingEach(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	if r := ask(t, s, Load{Workload: "W2", Each: true, Window: 4}); r.Answered != 200 || s.seen() != 100 {
		t.Errorf("%+v, %d names", counts(r), s.seen())
	}
	if r := ask(t, s, Load{Workload: "memory", Names: 500, Each: true, Window: 4}); r.Answered != 500 {
		t.Errorf("%+v", counts(r))
	}
}

// What other processes ran meanwhile is reported: this one, which answers, and none that is not there.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingWatch(t *testing.T) {
	t.Parallel()
	r := ask(t, serve(t, nil), Load{Sockets: 2, Window: 8, Count: 2000, Watch: []int{os.Getpid(), 1 << 30}})
	if len(r.Ran) != 2 || r.Ran[0] <= 0 || r.Ran[1] != 0 || r.Machine.CPUs < 1 {
		t.Errorf("ran %v, the machine %+v, the generator %v", r.Ran, r.Machine, r.CPU)
	}
	sum := Result{}
	sum.Add(r)
	sum.Add(r)
	if sum.Asked != 4000 || sum.Ran[0] != 2*r.Ran[0] || sum.Machine.Idle != 2*r.Machine.Idle || sum.Times.Count() != 4000 {
		t.Errorf("twice %+v is %+v", r.Ran, sum.Ran)
	}
}

// No socket is bound: the kernel refuses, which is a loss and no error.
//
// State: TestCheck, TestBounds, TestHistogram. Bound: none, it measures the generator itself.
func TestTimingRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	_ = s.conn.Close()
	if r := ask(t, s, Load{Sockets: 2, Window: 4, Count: 20, Patience: 100 * time.Millisecond}); r.Lost != 20 {
		t.Errorf("%+v", counts(r))
	}
}
