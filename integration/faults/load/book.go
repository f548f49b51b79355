package load

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Outcome is what became of one query, as a letter.
type Outcome byte

// The outcomes. A right answer has the query's id, name and type, NOERROR, and the very address that belongs to its
// other half, by which the scripted server reports who it is and whom it answered.
const (
	Lost   Outcome = 'l' // no answer within the patience
	Cache  Outcome = 'c' // right; kube-dns saw the node's query, now or earlier
	Direct Outcome = 'd' // right; kube-dns saw the pod's own query
	Failed Outcome = 'f' // a refusal: SERVFAIL, REFUSED
	Wrong  Outcome = 'w' // an answer to something else, or with other data
	// Skipped is a query that is not counted: see Book.Skip.
	Skipped Outcome = 's'
)

// Book is what became of a stream's queries, in the order in which they were due.
type Book struct {
	Stream   Stream
	Outcomes string          // a letter for each
	Took     []time.Duration // from when it was due to its answer; 0: none
	Late     time.Duration   // the most that a query was sent after it was due: the generator's own fault
	Reasons  map[string]int  `json:",omitempty"` // of failed, wrong and undeliverable ones
	Sent     int             `json:",omitempty"` // of a flood
	Answered int             `json:",omitempty"` // of a flood
}

// Sum is a part of a book, summed up.
type Sum struct {
	Sent   int `json:"sent"`
	Cache  int `json:"cache"`   // right answers from the node
	Direct int `json:"kubeDNS"` // right answers from kube-dns past the node
	Lost   int `json:"lost"`
	Failed int `json:"failed"`
	Wrong  int `json:"wrong"`
	// Gap is the longest time between two right answers, by when their queries were due; one lost query of a thousand
	// a second makes 2 ms.
	Gap  time.Duration `json:"gap"`
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// Good is how many right answers came.
func (s Sum) Good() int { return s.Cache + s.Direct }

// Missed is how many queries got no right answer: what a client would call lost.
func (s Sum) Missed() int { return s.Sent - s.Good() }

// Answered is how many got any answer.
func (s Sum) Answered() int { return s.Sent - s.Lost }

// All sums up the whole book.
func (b *Book) All() Sum { return b.Between(0, math.MaxInt64) }

// Between sums up the queries that were due from a time on and before another.
func (b *Book) Between(from, to time.Duration) Sum {
	var s Sum
	var times []time.Duration
	step := time.Second / time.Duration(b.Stream.Rate)
	last := time.Duration(-1) // when the last right answer was due
	for i := range len(b.Outcomes) {
		due := b.Stream.Due(i)
		if due < from || due >= to || Outcome(b.Outcomes[i]) == Skipped {
			continue
		}
		if s.Sent == 0 {
			last = due - step // as if the one before had been right
		}
		s.Sent++
		switch Outcome(b.Outcomes[i]) {
		case Cache:
			s.Cache++
		case Direct:
			s.Direct++
		case Failed:
			s.Failed++
		case Wrong:
			s.Wrong++
		default:
			s.Lost++
		}
		if Outcome(b.Outcomes[i]).good() {
			times = append(times, b.Took[i])
			s.Gap, last = max(s.Gap, due-last), due
		} else {
			s.Gap = max(s.Gap, due+step-last) // the next one, right or not, ends it at the earliest
		}
	}
	slices.Sort(times)
	s.P50, s.P99, s.P999, s.Max = percentile(times, 0.5), percentile(times, 0.99), percentile(times, 0.999), percentile(times, 1)
	return s
}

// Skip takes the queries for some names out of the count.
func (b *Book) Skip(name func(string) bool) {
	outcomes := []byte(b.Outcomes)
	for i := range outcomes {
		if name(b.Stream.QName(i)) {
			outcomes[i] = byte(Skipped)
		}
	}
	b.Outcomes = string(outcomes)
}

// Slowest is the longest that an answer of any kind took, of the queries due in a time.
func (b *Book) Slowest(from, to time.Duration) time.Duration {
	var d time.Duration
	for i := range len(b.Outcomes) {
		if due := b.Stream.Due(i); due >= from && due < to {
			d = max(d, b.Took[i])
		}
	}
	return d
}

func (o Outcome) good() bool { return o == Cache || o == Direct }

// percentile is the smallest value that at least the share p of the sorted values does not exceed (nearest rank).
func percentile(sorted []time.Duration, p float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(n)))
	return sorted[min(max(rank, 1), n)-1]
}

// Line is the outcomes in short, such as "2000c 5l 993d".
func (b *Book) Line() string {
	var out []string
	for i := 0; i < len(b.Outcomes); {
		end := i
		for end < len(b.Outcomes) && b.Outcomes[end] == b.Outcomes[i] {
			end++
		}
		out = append(out, itoa(end-i)+string(b.Outcomes[i]))
		i = end
	}
	return strings.Join(out, " ")
}

// ledger is a book that is being written, by the goroutines of one stream.
type ledger struct {
	stream Stream
	begun  time.Time

	mu       sync.Mutex // guards the fields below
	sent     []time.Time
	outcomes []byte
	took     []time.Duration
	open     int // queries without an answer
	reasons  map[string]int
	idle     chan struct{} // closed when no query is open
}

func newLedger(s Stream, begun time.Time, total int) *ledger {
	l := &ledger{
		stream: s, begun: begun, open: total, reasons: map[string]int{}, idle: make(chan struct{}),
		sent: make([]time.Time, total), took: make([]time.Duration, total), outcomes: make([]byte, total),
	}
	for i := range l.outcomes {
		l.outcomes[i] = byte(Lost)
	}
	return l
}

// send notes that a client sends query i now.
func (l *ledger) send(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[i] = time.Now()
}

// deadline is until when query i, sent before, is waited for.
func (l *ledger) deadline(i int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent[i].Add(l.stream.patience())
}

// answer notes the answer to query i. What comes after the client's patience, or a second time, changes nothing.
func (l *ledger) answer(i int, o Outcome, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream.Unsigned && reason == unsigned {
		o, reason = Cache, ""
	}
	now := time.Now()
	if l.took[i] != 0 || now.Sub(l.sent[i]) > l.stream.patience() {
		return
	}
	l.outcomes[i], l.took[i] = byte(o), max(now.Sub(l.begun.Add(l.stream.Due(i))), 1)
	l.note(reason)
	if l.open--; l.open == 0 {
		close(l.idle)
	}
}

// fault notes why a query could not be delivered; it stays lost.
func (l *ledger) fault(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(reason)
}

// maxReasons bounds what a book reports in words.
const maxReasons = 20

func (l *ledger) note(reason string) {
	if _, known := l.reasons[reason]; reason != "" && (known || len(l.reasons) < maxReasons) {
		l.reasons[reason]++
	}
}

// wait returns when every query has its answer or has used up its patience.
func (l *ledger) wait() {
	timer := time.NewTimer(l.stream.patience())
	defer timer.Stop()
	select {
	case <-l.idle:
	case <-timer.C:
	}
}

func (l *ledger) book(late time.Duration) *Book {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Book{Stream: l.stream, Outcomes: string(l.outcomes), Took: slices.Clone(l.took), Late: late, Reasons: l.reasons}
}
