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

// inheritedFD is where a node's first process finds what it is passed: the first node's the listener on the machine's loopback, another
// node's the world outside.
const inheritedFD = 3

// Node is a running one. That of Start and Open is the first, which has the control plane.
type Node struct {
	Options
	Release    containerd.Release // by its paths in the node
	Kubernetes string             // folder of its programs
	Others     []*Node            // the cluster's, of the first; nil otherwise

	host  host
	init  process
	ended chan struct{}
}

// process is a node's process 1.
type process struct {
	PID   int    // as the machine numbers it
	Start string // in the kernel's ticks: its number may be another's by now
}

func (p process) runs() bool { return p.Start != "" && startTime(p.PID) == p.Start }

// state is what another process has to know to find the nodes again, in Dir/state.json.
type state struct {
	Options
	Inits []process // by number of the node
}

// ErrRunning is what Start reports where a cluster runs already.
var ErrRunning = errors.New("a cluster is running already")

// Start brings all nodes up and returns when they are Ready and kube-dns's pods are. One cluster may run on a machine at a time.
func Start(ctx context.Context, o Options) (*Node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root")
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience*time.Duration(o.Workers+1))
	defer cancel()
	var n *Node
	err := exclusive(func() (err error) {
		if old, err := Open(); err == nil {
			return fmt.Errorf("%w (process %d): end it by `make cluster-down`", ErrRunning, old.init.PID)
		}
		if err := remove(); err != nil { // of one that crashed
			return err
		}
		if n, err = o.launch(ctx); err != nil {
			return errors.Join(err, remove())
		}
		return nil
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

// launch writes the nodes' files and starts the first process of each.
func (o Options) launch(ctx context.Context) (*Node, error) {
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
	token, err := o.writeFiles(release, l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("write the cluster's files: %w", err)
	}
	s := state{Options: o}
	var first *Node
	for h := range host(o.Workers + 1) {
		if err := h.writeFiles(o, token, kubernetes, release.Dir); err != nil {
			return nil, fmt.Errorf("write the files of %s: %w", h.name(), err)
		}
		if err := h.makeCgroup(); err != nil {
			return nil, err
		}
		pass := tcp.File
		if h != 0 {
			pass = func() (*os.File, error) { return first.openOutside(ctx) }
		}
		n := &Node{Options: o, Release: release, Kubernetes: filepath.Join(o.Bin, kubernetes), host: h, ended: make(chan struct{})}
		if err := n.launch(pass); err != nil {
			return nil, err
		}
		s.Inits = append(s.Inits, n.init)
		if err := writeJSON(path("state.json"), s); err != nil {
			return nil, err
		}
		if h == 0 {
			first = n
		} else {
			first.Others = append(first.Others, n)
		}
	}
	return first, nil
}

// launch starts the node's first process, with the file that pass opens.
func (n *Node) launch(pass func() (*os.File, error)) error {
	inherited, err := pass()
	if err != nil {
		return err
	}
	defer inherited.Close()
	log, err := os.Create(n.host.path("log", "node.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(n.Bin, "tools/cluster"), initVerb, strconv.Itoa(int(n.host)))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{inherited}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if n.Attached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
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
		return fmt.Errorf("start the first process of %s: %w", n.Name(), err)
	}
	n.init = process{PID: cmd.Process.Pid, Start: startTime(cmd.Process.Pid)}
	return nil
}

// openOutside opens the world outside, once the first node's process has made it.
func (n *Node) openOutside(ctx context.Context) (f *os.File, err error) {
	err = n.await(ctx, "the world outside", func() (err error) {
		if f, err = os.Open(n.Path(outsideNS())); err != nil {
			return err
		}
		var on unix.Statfs_t
		if err = unix.Fstatfs(int(f.Fd()), &on); err == nil && on.Type != unix.NSFS_MAGIC {
			err = errors.New("it is not mounted yet")
		}
		if err != nil {
			_ = f.Close()
		}
		return err
	})
	return f, err
}

func writeJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func readState() (s state, err error) {
	text, err := os.ReadFile(path("state.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && len(s.Inits) == 0 {
		err = errors.New("no process has started")
	}
	return s, err
}

// Open finds the cluster that runs on this machine.
func Open() (*Node, error) {
	s, err := readState()
	if err != nil {
		return nil, fmt.Errorf("no cluster runs here: %w", err)
	}
	release, err := containerd.Find(path("bin"), s.Runtime)
	if err != nil {
		return nil, err
	}
	kubernetes, err := s.kubernetes()
	if err != nil {
		return nil, err
	}
	var nodes []*Node
	for h, p := range s.Inits {
		if !p.runs() {
			return nil, fmt.Errorf("no cluster runs here: the first process of %s has ended", host(h).name())
		}
		nodes = append(nodes, &Node{Options: s.Options, Release: release, Kubernetes: filepath.Join(s.Bin, kubernetes), host: host(h), init: p,
			ended: make(chan struct{})})
	}
	nodes[0].Others = nodes[1:]
	return nodes[0], nil
}

// Remove ends the cluster that runs, if one does, and takes away all that one left: processes, namespaces with all in them,
// control groups, files.
func Remove() error { return exclusive(remove) }

func remove() error {
	if s, err := readState(); err == nil {
		for _, p := range s.Inits {
			if err := p.end(); err != nil {
				return err
			}
		}
	}
	if err := removeCgroup(); err != nil {
		return err
	}
	if err := os.RemoveAll(Dir); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	return nil
}

// end kills a node's first process, and by that all of the node's, and waits until they are gone.
func (p process) end() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.runs() { // looked at once it is held: its number is another's
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	// A process 1 ends when all of its namespace have; the descriptor is readable then.
	for deadline := time.Now().Add(time.Minute); ; {
		left := time.Until(deadline)
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(int(left.Milliseconds()), 0))
		if ready > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of process %d: %w", p.PID, err)
		}
		if left < 0 {
			return fmt.Errorf("process %d does not end", p.PID)
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

// Name is the node's, in the cluster.
func (n *Node) Name() string { return n.host.name() }

// All are this node and its Others: of the first node, all of the cluster.
func (n *Node) All() []*Node { return append([]*Node{n}, n.Others...) }

// PID is the node's first process, as the machine numbers it.
func (n *Node) PID() int { return n.init.PID }

// Ended is closed when a node that this process started has ended.
func (n *Node) Ended() <-chan struct{} { return n.ended }

// Logs are the last lines of each program's log.
func Logs() string {
	const last = 2000
	files, _ := filepath.Glob(path("log", "*.log"))
	others, _ := filepath.Glob(path(Name+"-*", "log", "*.log"))
	var out strings.Builder
	for _, f := range append(files, others...) {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		text = text[max(len(text)-last, 0):]
		_, _ = fmt.Fprintf(&out, "== %s\n%s\n", strings.TrimPrefix(f, Dir+"/"), text)
	}
	return out.String()
}
