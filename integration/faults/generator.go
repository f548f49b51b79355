package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

func (s *stand) stream(st load.Stream) load.Stream {
	st.Server, st.Unsigned = netip.AddrPortFrom(clusterDNS, 53), s.name == unbound
	return st
}

// ask runs a generator in the pod to its end.
func (s *stand) ask(p load.Plan) map[string]*load.Book {
	s.t.Helper()
	return s.launch(s.pod, p).wait()
}

// generator is a load generator's process in a pod.
type generator struct {
	s       *stand
	begun   time.Time // when its first queries were due, to a fraction of a millisecond
	process *testutil.Process
	result  chan error
	books   map[string]*load.Book
	errors  *strings.Builder
}

// launch starts a generator and returns when its first queries are due.
func (s *stand) launch(pod *testutil.Pod, p load.Plan) *generator {
	s.t.Helper()
	s.must(p.Check())
	in, err := json.Marshal(p)
	s.must(err)
	self, err := os.Executable()
	s.must(err)
	g := &generator{s: s, result: make(chan error, 1), books: map[string]*load.Book{}, errors: new(strings.Builder)}
	r, w := io.Pipe()
	cmd := exec.Command(self, loadVerb)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(in)), w, g.errors
	g.process = pod.StartCmd(cmd)
	go func() { _ = w.CloseWithError(errors.Join(g.process.Wait(), io.EOF)) }() // ends with the process
	begun := make(chan time.Time, 1)
	go func() { g.result <- g.read(r, begun) }() // ends with the pipe
	select {
	case g.begun = <-begun:
	case err := <-g.result:
		s.t.Fatalf("%s: the load did not begin: %v\n%s", s.name, err, g.errors)
	}
	return g
}

func (g *generator) read(r io.Reader, begun chan<- time.Time) error {
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSpace(line) != load.Begun {
		return fmt.Errorf("unexpected %q", line)
	}
	begun <- time.Now()
	var result load.Result
	if err := json.NewDecoder(lines).Decode(&result); err != nil {
		return err
	}
	for _, b := range result.Books {
		g.books[b.Stream.Name] = b
	}
	return nil
}

// wait waits for the end and returns the books by the streams' names.
func (g *generator) wait() map[string]*load.Book {
	g.s.t.Helper()
	if err := <-g.result; err != nil {
		g.s.t.Fatalf("%s: load: %v\n%s", g.s.name, err, g.errors)
	}
	_ = g.process.Wait() // it has reported all that it had to
	return g.books
}
