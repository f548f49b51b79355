package listener

import "sync"

// idleWorkers is how many goroutines are kept for the next questions: more than the questions of common bursts, and about 1 MiB.
const idleWorkers = 64

// workers hand questions to the chain, each one at a time. A worker lives on when its question is dealt with, and the one that was
// busy last is asked first: its stack has grown to what a plugin chain takes, and is in the processor's cache. So a question costs no
// goroutine. The quota bounds how many there are, since each has a question that has a place there.
//
// The zero value is ready to use, by several goroutines at the same time.
type workers struct {
	mu   sync.Mutex   // guards the fields below
	idle []chan asked // busy last: last
	over bool         // nobody is to stay
}

// asked is a question that a worker has the chain answer.
type asked interface{ serve() }

// do has a question answered. It never waits.
func (w *workers) do(q asked) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		next := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		next <- q // it has room for one
		return
	}
	w.mu.Unlock()
	go w.work(q) // ends where enough others are idle
}

func (w *workers) work(q asked) {
	next := make(chan asked, 1)
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

// rest takes a worker among those that are idle, unless there are enough.
func (w *workers) rest(next chan asked) bool {
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

// dismiss ends workers, each as soon as it is idle. Nobody may call do any more before open.
func (w *workers) dismiss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, next := range w.idle {
		close(next)
	}
	w.idle = nil
}
