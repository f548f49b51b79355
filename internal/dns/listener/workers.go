package listener

import "sync"

// idleWorkers is how many goroutines wait for the next queries: more than the queries of common bursts, and about 1 MiB.
const idleWorkers = 64

// workers run queries through the chain, each one at a time. A worker stays alive after its query, and the one that was busy last gets the
// next: its stack has grown to what a plugin chain needs, and is in the processor's cache. So a query costs no new goroutine. The quota
// bounds their number, because each has a query with a slot there.
//
// The zero value is ready to use, by several goroutines at the same time.
type workers struct {
	mu   sync.Mutex // guards the fields below
	idle []chan job // busy last: last
	over bool       // no worker stays
}

// job is a query that a worker runs through the chain.
type job interface{ serve() }

// do gives a query to a worker. It never waits.
func (w *workers) do(q job) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		next := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		next <- q // buffered
		return
	}
	w.mu.Unlock()
	go w.work(q) // ends where enough others are idle
}

func (w *workers) work(q job) {
	next := make(chan job, 1)
	for {
		q.serve()
		if !w.rest(next) {
			return
		}
		if q = <-next; q == nil {
			return // dismissed
		}
	}
}

// rest adds a worker to the idle ones, unless there are enough.
func (w *workers) rest(next chan job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || len(w.idle) >= idleWorkers {
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// open lets workers stay.
func (w *workers) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = false
}

// dismiss ends workers, each as soon as it is idle. do must not be called again before open.
func (w *workers) dismiss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}
