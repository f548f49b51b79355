package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Result is what a generator's process prints.
type Result struct{ Books []*Book }

// Begun is the line that Generate prints when the first queries are due.
const Begun = "begun"

// headStart is how long streams have to open their sockets before the first query is due.
const headStart = 100 * time.Millisecond

// Generate is a generator's whole process: a Plan on in; on out the line Begun, and at the end a Result.
func Generate(in io.Reader, out io.Writer) error {
	var p Plan
	if err := json.NewDecoder(in).Decode(&p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if err := p.Check(); err != nil {
		return err
	}
	begun := time.Now().Add(headStart)
	announced := make(chan struct{})
	time.AfterFunc(headStart, func() {
		defer close(announced)
		_, _ = fmt.Fprintln(out, Begun)
	})
	r, err := p.Run(begun)
	if <-announced; err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// Run carries a plan out and returns a book for each stream. The first queries are due at begun.
func (p Plan) Run(begun time.Time) (Result, error) {
	r := Result{Books: make([]*Book, len(p.Streams))}
	errs := make([]error, len(p.Streams))
	var wg sync.WaitGroup
	for k, s := range p.Streams {
		ask := map[Way]func(Stream, time.Time, time.Duration) (*Book, error){UDP: askUDP, OneShot: askOneShot, Long: askLong, Pair: askPair, Flood: askFlood}[s.Way]
		wg.Go(func() {
			var err error
			if r.Books[k], err = ask(s, begun, p.Duration); err != nil {
				errs[k] = fmt.Errorf("stream %s: %w", s.Name, err)
			}
		})
	}
	wg.Wait()
	return r, errors.Join(errs...)
}
