package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/neardns/neardns/pkg/testutil"
)

// ballastVerb makes this program one that takes memory until it is instructed to stop.
const ballastVerb = "ballast"

func memoryCgroup(t testutil.TB, _ func(string) string) string {
	g := testutil.OpenCgroup(t, "memory")
	if g == nil {
		return "no memory cgroup can be made here"
	}
	g.Remove()
	return ""
}

// oom puts the server into a cgroup whose limit a second process then runs into. The kernel ends the one that is marked as
// the first to go: the server, as in a pod where it is alone. (What a process took before it came into a cgroup of version 1
// is not counted there, so that a limit of its own would not be met.)
func (r *run) oom() {
	s := r.s
	s.t.Helper()
	const limit = 64 << 20
	g := testutil.OpenCgroup(s.t, "memory")
	defer g.Remove()
	g.LimitMemory(limit)
	g.Add(s.server.PID())
	s.must(os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", s.server.PID()), []byte("1000"), 0))
	self, err := os.Executable()
	s.must(err)
	in, out, err := os.Pipe()
	s.must(err)
	defer out.Close() // ends the ballast
	cmd := exec.Command(self, ballastVerb)
	cmd.Stdin = in
	ballast := s.node.Host.StartCmd(cmd)
	_ = in.Close()
	defer ballast.Kill()
	g.Add(ballast.PID())
	r.at(0)
	_, err = out.WriteString("\n")
	s.must(err)
	testutil.Receive(s.t, s.server.Exited())
	if state, ok := s.server.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || state.Signal() != syscall.SIGKILL {
		s.t.Fatalf("%s: the server ended by itself: %v", s.name, s.server.Cmd.ProcessState)
	}
}

// ballast takes memory, a MiB at a time and at most 128, after a line on its standard input, and holds it until that ends.
func ballast() {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	var held [][]byte
	for range 128 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	_, _ = in.ReadString('\n')
	_ = held
}
