// Package cutoff reports what clients see while one program is cut off from another: clients send queries at a steady pace from before
// the cut until all is well for good, and a cell of the table reports how long after the cut the last query was lost, and how many
// were. It is for tests; `make cutoff` draws their tables.
package cutoff

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// Document names, in the environment, the page that the tables are drawn into.
const Document = "NEARDNS_CUTOFF"

// Limits of a cell, from the cut on: a lease shows within seconds that the agent cannot query, evidence takes queries, and some cuts
// need neither.
const (
	Lease    = 5 * time.Second
	Evidence = 20 * time.Second
	None     = 2 * time.Second
)

const (
	pace     = 200 * time.Millisecond
	patience = 2 * time.Second  // of a query: musl's resolver library waits 2.5 s, glibc's 5
	calm     = 8 * time.Second  // that long without a loss: over
	end      = 75 * time.Second // by when it is over, or has no end
	before   = 30 * time.Second // by when nothing is lost before the cut
)

// Cell is what came of one cut, over all servers that were queried.
type Cell struct {
	After       time.Duration // when the last query was lost; 0: none was
	Lost, Asked int
	NotTried    bool
	Ended       bool   // nothing was lost any more
	Worst       string // the last query that was lost
}

// Within reports whether clients were answered as without neardns in time.
func (c Cell) Within(limit time.Duration) bool { return c.NotTried || c.Ended && c.After <= limit }

// String is the cell as the table has it.
func (c Cell) String() string {
	switch {
	case c.NotTried:
		return "–"
	case !c.Ended:
		return fmt.Sprintf("**no end** (%d of %d lost)", c.Lost, c.Asked)
	case c.Lost == 0:
		return "at once, 0"
	}
	return fmt.Sprintf("%.1f s, %d", c.After.Seconds(), c.Lost)
}

// Watch queries each of some addresses over UDP and TCP from a netns, by turns a name that the cache holds and a new one, and cuts. fresh
// makes names that no client has queried.
func Watch(t testutil.TB, from *testutil.NetNS, fresh func() string, cut func(), at ...netip.Addr) Cell {
	t.Helper()
	var askers []*asker
	stop := make(chan struct{})
	var running, asked sync.WaitGroup
	for _, a := range at {
		for _, network := range []string{"udp", "tcp"} {
			a := &asker{from: from, at: netip.AddrPortFrom(a, 53), network: network}
			askers = append(askers, a)
			running.Go(func() { a.run(fresh, stop, &asked) })
		}
	}
	defer func() {
		close(stop)
		running.Wait()
		asked.Wait()
	}()
	if !calmed(askers, time.Now().Add(-calm), time.Now().Add(before)) {
		t.Fatalf("questions are lost before anything is cut")
	}
	lostBefore := make([]int, len(askers))
	for i, a := range askers {
		lostBefore[i] = a.state().lost
	}
	begun := time.Now()
	cut()
	out := Cell{Ended: calmed(askers, begun, begun.Add(end))}
	for i, a := range askers {
		s := a.state()
		lost := s.lost - lostBefore[i]
		out.Asked += s.sent
		out.Lost += lost
		if after := s.last.Sub(begun); lost > 0 && after > out.After {
			out.After, out.Worst = after, fmt.Sprintf("%s %s: %v", a.network, a.at.Addr(), s.why)
		}
	}
	return out
}

// asker queries one server over one protocol.
type asker struct {
	from    *testutil.NetNS
	at      netip.AddrPort
	network string

	mu  sync.Mutex // guards now
	now state
}

type state struct {
	last       time.Time // when the last lost query was sent
	why        error
	lost, sent int
}

func (a *asker) state() state {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

func (a *asker) run(fresh func() string, stop <-chan struct{}, asked *sync.WaitGroup) {
	known := fresh()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		name := known
		if i%2 == 1 {
			name = fresh()
		}
		asked.Go(func() { a.ask(name) })
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

func (a *asker) ask(name string) {
	begun := time.Now()
	answer, err := testutil.Ask(a.from, a.at, name, dns.TypeA, a.network, testutil.AskOptions{Timeout: patience, EDNS: 1232})
	if err == nil && (answer.Rcode() != "NOERROR" || len(answer.Msg.Answer) == 0) {
		err = fmt.Errorf("%s", answer)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.sent++
	if err == nil {
		return
	}
	a.now.lost++
	a.now.why = err
	if begun.After(a.now.last) {
		a.now.last = begun
	}
}

// calmed waits until no client has lost a query for as long as makes it over, or until the end.
func calmed(askers []*asker, since, end time.Time) bool {
	for {
		quiet := since
		for _, a := range askers {
			if last := a.state().last; last.After(quiet) {
				quiet = last
			}
		}
		wait := time.Until(quiet.Add(calm + patience))
		if wait <= 0 {
			return true
		}
		if time.Now().Add(wait).After(end) {
			return false
		}
		<-time.After(wait)
	}
}

// Draw puts a table into the page that the environment names, between the comments "cutoff NAME" and "end of cutoff"; without a page
// it does nothing.
func Draw(t testutil.TB, name string, rows, columns []string, cells [][]Cell) {
	t.Helper()
	page := os.Getenv(Document)
	if page == "" {
		return
	}
	data, err := os.ReadFile(page) //nolint:gosec // the person who draws names it
	if err != nil {
		t.Fatalf("%v", err)
	}
	before, rest, found := strings.Cut(string(data), "<!-- cutoff "+name+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end of cutoff -->\n")
	if !found || !ended {
		t.Fatalf("%s has no place for the table %q", page, name)
	}
	text := before + "<!-- cutoff " + name + " -->\n" + table(rows, columns, cells) + "<!-- end of cutoff -->\n" + after
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil { //nolint:gosec // a page of the repository
		t.Fatalf("%v", err)
	}
}

func table(rows, columns []string, cells [][]Cell) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| cut off | %s |\n| --- |%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)))
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, c := range cells[i] {
			fmt.Fprintf(&b, " %s |", c)
		}
		b.WriteString("\n")
	}
	return b.String()
}
