package testutil

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// Program runs f with a TB outside of a test, for example for a demonstration. It returns Fatalf's text as error, or ctx's error if ctx
// ends before f does; f may then still be running, so the caller should exit. In each case it first runs the cleanups, the last
// registered first. Logf writes lines to out.
func Program(ctx context.Context, out io.Writer, f func(TB)) error {
	p := &program{out: out}
	done := make(chan struct{})
	var panicked any
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f(p)
	}()
	var interrupted error
	select {
	case <-done:
	case <-ctx.Done():
		interrupted = ctx.Err()
	}
	p.clean()
	p.mu.Lock()
	defer p.mu.Unlock()
	if interrupted != nil {
		return interrupted
	}
	if panicked != nil {
		panic(panicked)
	}
	return p.err
}

type program struct {
	mu       sync.Mutex // guards the fields below and writing to out
	out      io.Writer
	cleanups []func()
	cleaned  bool
	err      error
}

func (p *program) Helper() {}

func (p *program) Logf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Fatalf ends the calling goroutine, as in package testing. Program returns the text of the first call.
func (p *program) Fatalf(format string, args ...any) {
	p.mu.Lock()
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.mu.Unlock()
	runtime.Goexit()
}

// Cleanup registers f. If Program has run the cleanups already, because ctx ended before its function did, Cleanup calls f at once.
func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	late := p.cleaned
	if !late {
		p.cleanups = append(p.cleanups, f)
	}
	p.mu.Unlock()
	if late {
		f()
	}
}

func (p *program) clean() {
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			p.cleaned = true
			p.mu.Unlock()
			return
		}
		f := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		done := make(chan struct{})
		// Call the cleanup on a separate goroutine: if it calls Fatalf, the other cleanups must still run.
		go func() { defer close(done); f() }()
		<-done
	}
}
