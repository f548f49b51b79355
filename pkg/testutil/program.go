package testutil

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// Program runs f with a TB that is no test: what a demonstration needs. It returns Fatalf's text, or ctx's error where
// ctx ended first, and in every case runs the cleanups, last registered first, before it returns. f is then left to
// itself: the caller should exit. Logf writes lines to out.
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

// Fatalf ends f as testing does, by ending its goroutine; the first one counts.
func (p *program) Fatalf(format string, args ...any) {
	p.mu.Lock()
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.mu.Unlock()
	runtime.Goexit()
}

// Cleanup after the end (f may still be running when it was interrupted) cleans at once.
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
		// On a goroutine of its own: a cleanup that calls Fatalf must not end the others.
		go func() { defer close(done); f() }()
		<-done
	}
}
