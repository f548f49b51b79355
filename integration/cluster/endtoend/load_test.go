package endtoend

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
)

// The load: from all pods together, mostly 20, each over one family.
const (
	loadPods  = 20
	segment   = 10 * time.Second
	loadQuiet = 3 * time.Second // before what is done under it: until every name was queried, and so is in the cache
)

// amount is how many queries a load has.
type amount struct {
	udp, tcp int // per second of all pods; over TCP, a connection each
	least    int // in all; 0: as many as are sent while something is done
}

// usual is the load of every step of TestCluster: 500 queries per second.
var usual = amount{udp: udpRate, tcp: tcpRate}

const udpRate, tcpRate = 400, 100

// plan is what one of some pods queries.
func (a amount) plan(i, of int) load.Plan {
	at := netip.AddrPortFrom(server(i%2 == 0), 53)
	stream := load.Stream{Server: at, Zone: "who.cluster.local", Label: "n", Names: 40, Patience: 2 * time.Second}
	udp, tcp := stream, stream
	udp.Name, udp.Way, udp.Rate, udp.Sockets = "udp", load.UDP, a.udp/of, 2
	tcp.Name, tcp.Way, tcp.Rate = "tcp", load.OneShot, a.tcp/of
	return load.Plan{Streams: []load.Stream{udp, tcp}, Duration: segment}
}

// tally is what became of all queries.
type tally struct {
	load.Sum
	lines   []string // of books in which something is missing
	reasons map[string]int
}

func (y *tally) add(p pod, books []*load.Book) {
	for _, b := range books {
		one := b.All()
		y.Sent += one.Sent
		y.Cache += one.Cache
		y.Direct += one.Direct
		y.Lost += one.Lost
		y.Failed += one.Failed
		y.Wrong += one.Wrong
		y.Max = max(y.Max, one.Max)
		if one.Missed() > 0 {
			y.lines = append(y.lines, fmt.Sprintf("%s %s: %s", p.name, b.Stream.Name, b.Line()))
		}
		for r, n := range b.Reasons {
			y.reasons[r] += n
		}
	}
}

// underLoad does something while pods query, and reports what became of their queries. They query in segments, until it is done.
func (s *suite) underLoad(pods []pod, act func()) *tally {
	s.t.Helper()
	y := &tally{reasons: map[string]int{}}
	begun, stop, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		for first := true; ; first = false {
			err := s.oneSegment(pods, y, func() {
				if first {
					close(begun)
				}
			})
			if err != nil {
				done <- err
				return
			}
			if y.Sent < s.load.least {
				continue
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	select {
	case <-begun:
	case err := <-done:
		s.t.Fatalf("the load does not begin: %v", err)
	}
	pass(loadQuiet)
	func() {
		defer close(stop) // also where act ends the step
		act()
	}()
	s.must(<-done)
	s.t.Logf("of %d questions: %d answered by the cache, %d by kube-dns, %d lost, %d failed, %d wrong %v; the slowest took %v", y.Sent, y.Cache, y.Direct, y.Lost, y.Failed, y.Wrong, y.reasons, y.Max)
	return y
}

// pass lets time go by: load is a matter of time.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// oneSegment has every pod carry out its plan once. began is called when the first queries of all are due.
func (s *suite) oneSegment(pods []pod, y *tally, began func()) error {
	var mu sync.Mutex
	var all, ready sync.WaitGroup
	errs := make([]error, len(pods))
	ready.Add(len(pods))
	for i, p := range pods {
		all.Go(func() {
			once := sync.OnceFunc(ready.Done)
			defer once()
			books, err := s.generate(p, s.load.plan(i, len(pods)), once)
			mu.Lock()
			defer mu.Unlock()
			y.add(p, books)
			if err != nil {
				errs[i] = fmt.Errorf("load of pod %s: %w", p.name, err)
			}
		})
	}
	ready.Wait()
	began()
	all.Wait()
	return errors.Join(errs...)
}

// generate is one pod's load.
func (s *suite) generate(p pod, plan load.Plan, began func()) ([]*load.Book, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("nsenter", "--net="+p.ns, filepath.Join(s.Bin, "tools/faults"), "load")
	cmd.Stdin = strings.NewReader(string(text))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err == nil && strings.TrimSpace(line) == load.Begun {
		began()
	}
	var result load.Result
	decoded := json.NewDecoder(r).Decode(&result)
	_, _ = io.Copy(io.Discard, r)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, complaint.String())
	}
	return result.Books, decoded
}

// wantMissed holds how many queries of a load may have no right answer.
func (s *suite) wantMissed(y *tally, most int) {
	s.t.Helper()
	if y.Missed() > most || y.Wrong > 0 || y.Sent < max((s.load.udp+s.load.tcp)*int(segment/time.Second), s.load.least) {
		s.t.Errorf("%d of %d questions have no right answer (%d wrong ones), at most %d may\n%s", y.Missed(), y.Sent, y.Wrong, most, strings.Join(y.lines, "\n"))
	}
}
