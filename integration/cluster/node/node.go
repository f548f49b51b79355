package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/containerd"
)

// listenerFD is what the inner processes find the listener at.
const listenerFD = 3

// Node is a running one.
type Node struct {
	Options
	Release    containerd.Release // by its paths in the node
	Kubernetes string             // folder of its programs

	pid   int // of process 1, as the machine numbers it
	ended chan struct{}
}

// state is what another process has to know to find the node again, in Dir/state.json.
type state struct {
	Options
	PID   int
	Start string // of the process, in the kernel's ticks: its number may be another's by now
}

// ErrRunning is what Start reports where a cluster runs already.
var ErrRunning = errors.New("a cluster is running already")

// Start brings a node up and returns when it is Ready and kube-dns answers. One may run on a machine at a time.
func Start(ctx context.Context, o Options) (*Node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root")
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	var n *Node
	err := exclusive(func() (err error) {
		if old, err := Open(); err == nil {
			return fmt.Errorf("%w (process %d): end it by `make cluster-down`", ErrRunning, old.pid)
		}
		if err := remove(); err != nil { // of one that crashed
			return err
		}
		n, err = o.launch()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start the node: %w", err)
	}
	if err := n.settle(ctx); err != nil {
		logs := Logs()
		return nil, errors.Join(fmt.Errorf("start the node: %w\n%s", err, logs), Remove())
	}
	return n, nil
}

// exclusive keeps two callers on one machine apart, by a lock on the folder that Dir is in: it leaves no file.
func exclusive(f func() error) error {
	folder, err := os.Open(filepath.Dir(Dir))
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", folder.Name(), err)
	}
	return f()
}

// launch writes the node's files and starts its first process.
func (o Options) launch() (*Node, error) {
	release, err := containerd.Find(path("bin"), o.Runtime)
	if err != nil {
		return nil, err
	}
	kubernetes, err := o.kubernetes()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close() // the node has its own descriptor of it
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%T is no TCP listener", l)
	}
	listener, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if err := o.writeFiles(release, l.Addr().String()); err != nil {
		return nil, fmt.Errorf("write the node's files: %w", err)
	}
	if err := makeCgroup(); err != nil {
		return nil, err
	}
	token, err := os.ReadFile(path("token"))
	if err != nil {
		return nil, err
	}
	if err := writeJSON("plan.json", plan{Bin: o.Bin, Token: string(token), Programs: programs(kubernetes, release.Dir)}); err != nil {
		return nil, err
	}
	log, err := os.Create(path("log", "node.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(o.Bin, "tools/cluster"), initVerb)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if o.Attached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	n := &Node{Options: o, Release: release, Kubernetes: filepath.Join(o.Bin, kubernetes), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal is of the thread that forks
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // node.log has the reason
			close(n.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the first process: %w", err)
	}
	n.pid = cmd.Process.Pid
	return n, writeJSON("state.json", state{Options: o, PID: n.pid, Start: startTime(n.pid)})
}

func writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path(name), text, 0o600)
}

// Open finds the node that runs on this machine.
func Open() (*Node, error) {
	var s state
	text, err := os.ReadFile(path("state.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("no cluster runs here: %w", err)
	}
	if s.Start == "" || startTime(s.PID) != s.Start {
		return nil, errors.New("no cluster runs here: its process has ended")
	}
	release, err := containerd.Find(path("bin"), s.Runtime)
	if err != nil {
		return nil, err
	}
	kubernetes, err := s.kubernetes()
	if err != nil {
		return nil, err
	}
	return &Node{Options: s.Options, Release: release, Kubernetes: filepath.Join(s.Bin, kubernetes), pid: s.PID, ended: make(chan struct{})}, nil
}

// Remove ends the node that runs, if one does, and takes away all that one left: processes, namespaces with all in them,
// control groups, files.
func Remove() error { return exclusive(remove) }

func remove() error {
	if n, err := Open(); err == nil {
		if err := n.end(); err != nil {
			return err
		}
	}
	if err := removeCgroup(); err != nil {
		return err
	}
	if err := os.RemoveAll(Dir); err != nil {
		return fmt.Errorf("remove the node's files: %w", err)
	}
	return nil
}

// end kills the first process, and by that all of the node's, and waits until they are gone.
func (n *Node) end() error {
	fd, err := unix.PidfdOpen(n.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", n.pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", n.pid, err)
	}
	// A process 1 ends when all of its namespace have; the descriptor is readable then.
	for deadline := time.Now().Add(time.Minute); ; {
		left := time.Until(deadline)
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(int(left.Milliseconds()), 0))
		if ready > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of process %d: %w", n.pid, err)
		}
		if left < 0 {
			return fmt.Errorf("process %d does not end", n.pid)
		}
	}
}

// startTime is when a process started, in the kernel's ticks since boot; "" if there is none.
func startTime(pid int) string {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	// The name in parentheses may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19] // field 22 of the line
}

// PID is the node's first process, as the machine numbers it.
func (n *Node) PID() int { return n.pid }

// Ended is closed when a node that this process started has ended.
func (n *Node) Ended() <-chan struct{} { return n.ended }

// Logs are the last lines of each program's log.
func Logs() string {
	const last = 2000
	files, _ := filepath.Glob(path("log", "*.log"))
	var out strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		text = text[max(len(text)-last, 0):]
		_, _ = fmt.Fprintf(&out, "== %s\n%s\n", filepath.Base(f), text)
	}
	return out.String()
}
