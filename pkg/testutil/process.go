package testutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program running in a namespace. Cleanup kills it; if the test process dies, the kernel kills it.
type Process struct {
	Cmd *exec.Cmd

	t       TB
	output  *output
	exited  chan struct{} // closed after the fields below are set
	waitErr error
}

// Start starts a program in the namespace.
func (n *NetNS) Start(args ...string) *Process {
	n.t.Helper()
	return n.StartCmd(command(context.Background(), args...))
}

// agentNice is the nice value of agents in tests that are not timing tests. It gives an agent the CPU share that its container requests on
// a node, even if this machine is busy. Otherwise the agent would rightly lose its leases, and the test would fail.
const agentNice = -10

// StartAgent is Start for a neardns agent, which gets the nice value agentNice. In a timing test it gets 0, because it is measured against
// the other programs.
func (n *NetNS) StartAgent(args ...string) *Process {
	n.t.Helper()
	return n.StartAgentCmd(command(context.Background(), args...))
}

// StartAgentCmd is StartAgent for a prepared command.
func (n *NetNS) StartAgentCmd(cmd *exec.Cmd) *Process {
	n.t.Helper()
	nice := agentNice
	if test, ok := n.t.(interface{ Name() string }); ok && strings.HasPrefix(test.Name(), "TestTiming") {
		nice = 0
	}
	p := start(n.t, n.name, func() error {
		// Set the priority of only this thread; the program inherits it.
		return errors.Join(unix.Setns(n.FD(), unix.CLONE_NEWNET), unix.Setpriority(unix.PRIO_PROCESS, 0, nice))
	}, cmd, unix.SIGKILL)
	n.t.Cleanup(p.Kill)
	return p
}

// StartHere starts a prepared command in the network namespace of this process, for programs that use only loopback. Output returns what
// the command prints, unless the command has its own writers.
func StartHere(t TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := start(t, "this process's namespace", func() error { return nil }, cmd, unix.SIGKILL)
	t.Cleanup(p.Kill)
	return p
}

// StartCmd starts a prepared command in the namespace. Output returns what the command prints, unless the command has its
// own writers.
func (n *NetNS) StartCmd(cmd *exec.Cmd) *Process {
	n.t.Helper()
	p := n.start(cmd, unix.SIGKILL)
	n.t.Cleanup(p.Kill)
	return p
}

// StartDetached is StartCmd for a program that outlives this process, in a namespace for which Keep was called. Neither
// Cleanup nor the kernel kills it. Send its output to a file, because pipes end with this process.
func (n *NetNS) StartDetached(cmd *exec.Cmd) *Process {
	n.t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return n.start(cmd, 0)
}

// start starts cmd in the namespace. The kernel sends deathSignal to cmd when this process dies.
func (n *NetNS) start(cmd *exec.Cmd, deathSignal syscall.Signal) *Process {
	n.t.Helper()
	return start(n.t, n.name, func() error { return unix.Setns(n.FD(), unix.CLONE_NEWNET) }, cmd, deathSignal)
}

// start starts cmd from a thread that has called enter, for example to enter a namespace. where names that place in messages.
func start(t TB, where string, enter func() error, cmd *exec.Cmd, deathSignal syscall.Signal) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, t: t, output: &output{}, exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.output
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The parent-death signal belongs to the thread that forks, so that thread is held until the program ends.
	cmd.SysProcAttr.Pdeathsig = deathSignal
	cmd.WaitDelay = Attempt // a grandchild that holds our pipes must not hold Wait
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread stays in the namespace and ends with the goroutine
		err := enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		p.waitErr = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %v in %s: %v", cmd.Args, where, err)
	}
	return p
}

// PID returns the program's process ID.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

// Signal sends a signal. It does nothing if the program has ended.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("send %v to %v: %v", s, p.Cmd.Args, err)
	}
}

// Stop freezes the program by SIGSTOP and returns when it has stopped. Its sockets stay bound, as in a hung process.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(unix.SIGSTOP)
	Eventually(p.t, func() error {
		if state := p.state(); state != 'T' {
			return fmt.Errorf("%v is in state %c, not stopped", p.Cmd.Args, state)
		}
		return nil
	})
}

// Cont continues a stopped program (SIGCONT).
func (p *Process) Cont() {
	p.t.Helper()
	p.Signal(unix.SIGCONT)
}

func (p *Process) state() byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 'X'
	}
	// The program's name in parentheses may have any characters. The process state follows the last closing parenthesis.
	if at := bytes.LastIndexByte(stat, ')'); at >= 0 && at+2 < len(stat) {
		return stat[at+2]
	}
	return '?'
}

// Kill ends the program by SIGKILL and waits for it. It may be called at any time.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.exited
}

// KillAfter kills the program after d, if it has not ended by then. A test uses it to end a program at different moments, and does not
// measure the time.
func (p *Process) KillAfter(d time.Duration) {
	select {
	case <-p.exited:
	case <-time.After(d):
		p.Kill()
	}
}

// Terminate sends SIGTERM, waits for the program's end as ExitCode does, and returns the error of Wait.
func (p *Process) Terminate(timeout time.Duration) error {
	p.t.Helper()
	p.Signal(unix.SIGTERM)
	p.ExitCode(timeout)
	return p.waitErr
}

// ExitCode waits for the program's end and returns its exit code, or -1 if a signal ended it. After timeout multiplied by
// Slowness, it kills the program and fails the test.
func (p *Process) ExitCode(timeout time.Duration) int {
	p.t.Helper()
	timeout *= Slowness()
	select {
	case <-p.exited:
	case <-time.After(timeout):
		p.Kill()
		p.t.Fatalf("%v did not end within %v\n%s", p.Cmd.Args, timeout, p.Output())
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Wait waits for the program's end and returns its error.
func (p *Process) Wait() error {
	<-p.exited
	return p.waitErr
}

// Exited returns a channel that is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Output returns what the program has printed so far to standard output and standard error.
func (p *Process) Output() string { return p.output.String() }

type output struct {
	mu  sync.Mutex // guards the field below
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
