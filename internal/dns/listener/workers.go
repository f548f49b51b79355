package listener

import "sync"

// idleWorkers is the maximum of idle goroutines that wait for queries: more than the queries of common bursts, and about 1 MiB of memory.
const idleWorkers = 64

// workers are goroutines that run queries through the plugin chain, each one query at a time. After its query a worker waits for another.
// The one that was busy last gets the next query, because its stack has the size that a plugin chain needs, and is in the processor's
// cache. So a query rarely costs a new goroutine. The quota limits their number, because each query has a slot there.
//
// The zero value is ready to use by several goroutines.
type workers struct {
	mu   sync.Mutex // guards the fields below
	idle []chan job // channels of the idle workers; the worker that was busy last is at the end
	over bool       // workers end after their query, see dismiss
}

// job is a query that a worker runs through the plugin chain.
type job interface{ serve() }

// do gives a query to an idle worker, or to a new one. It never blocks.
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
	go w.work(q) // ends after a query if enough others are idle
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

// rest adds a worker to the idle ones. It returns false if there are enough, or after dismiss.
func (w *workers) rest(next chan job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || len(w.idle) >= idleWorkers {
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// open undoes dismiss.
func (w *workers) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = false
}

// dismiss ends the workers, each as soon as it is idle. do must not be called again before open.
func (w *workers) dismiss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}
