package entries

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

// fakeKernel is a Kernel for the tests. Its clock also counts while the machine sleeps.
type fakeKernel struct {
	mu          sync.Mutex // guards the fields below
	began       time.Time
	slept       time.Duration
	has         map[string]Item
	hits        map[string]uint64
	invalidated int
	err         error // of Put
	removeErr   error
	deaf        error  // of Invalidate
	begun       func() // called before an answer is removed; nil: no call
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{began: time.Now(), has: map[string]Item{}, hits: map[string]uint64{}}
}

func (b *fakeKernel) Now() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Hour + time.Since(b.began) + b.slept
}

func (b *fakeKernel) Put(l Item) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	b.has[string(l.Key.Question())] = l
	return nil
}

// begin reports that an answer is about to be removed.
func (b *fakeKernel) begin() {
	b.mu.Lock()
	begun := b.begun
	b.mu.Unlock()
	if begun != nil {
		begun()
	}
}

func (b *fakeKernel) Remove(k *msg.Key) error {
	b.begin()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.has, string(k.Question()))
	return b.removeErr
}

func (b *fakeKernel) Invalidate() error {
	b.begin()
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.has)
	b.invalidated++
	return b.deaf
}

func (b *fakeKernel) Hits(each func(string, uint64)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for q, n := range b.hits {
		each(q, n)
	}
	clear(b.hits)
	return nil
}

func (b *fakeKernel) HitsOf(k *msg.Key) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.hits[string(k.Question())]
	delete(b.hits, string(k.Question()))
	return n, b.deaf
}

// names returns the names of the entries that the kernel has.
func (b *fakeKernel) names() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for q := range maps.Keys(b.has) {
		out = append(out, q[1:1+q[0]])
	}
	if len(out) > 1 {
		return fmt.Sprint(len(out))
	}
	return strings.Join(out, " ")
}
