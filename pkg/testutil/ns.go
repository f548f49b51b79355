package testutil

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nsDir is the folder of the namespaces' bind mounts. It is not /run/netns, because `ip netns add` may mount that folder over itself while
// a test runs, and then earlier mounts in it cannot be removed.
const nsDir = "/run/neardns-test"

// runTimeout ends a command that hangs. It is far above the time that the slowest loading of rules takes.
const runTimeout = 5 * time.Minute

// NetNS is a network namespace that NewNS made, with loopback up. All methods may be called from any goroutine.
type NetNS struct {
	t      TB
	name   string // the name that NewNS got, for messages
	path   string
	lock   *os.File // flocked while the owner lives
	file   *os.File
	handle *netlink.Handle

	mu     sync.Mutex // guards the field below
	closed bool
}

// NewNS makes a network namespace, which t.Cleanup removes. name is for messages and need not be unique.
func NewNS(t TB, name string) *NetNS {
	t.Helper()
	sweep()
	n := &NetNS{t: t, name: name}
	if err := n.create(); err != nil {
		t.Fatalf("make network namespace %s: %v", name, err)
	}
	t.Cleanup(n.Close)
	return n
}

func (n *NetNS) create() (err error) {
	if err := os.MkdirAll(nsDir, 0o755); err != nil {
		return err
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	n.path = filepath.Join(nsDir, strings.ReplaceAll(n.name, "/", "_")+"-"+hex.EncodeToString(random))
	if n.lock, err = lockFile(n.path); err != nil {
		return err
	}
	mount, err := os.OpenFile(n.path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_ = mount.Close()

	done := make(chan error)
	go func() {
		// Never unlock the thread: it has left the process's namespace, and the Go runtime ends it with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		done <- unix.Mount("/proc/thread-self/ns/net", n.path, "", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		return err
	}
	if n.file, err = os.Open(n.path); err != nil {
		return err
	}
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.FD())); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	lo, err := n.handle.LinkByName("lo")
	if err != nil {
		return err
	}
	return n.handle.LinkSetUp(lo)
}

// lockFile makes the file <path>.lock. It is locked before it gets this name, because sweep removes namespaces whose lock file no process
// has locked.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, os.Rename(path+".new", path+".lock")
}

// sweep removes the namespaces of test runs that were killed: those whose lock file no process has locked, except those of Keep.
func sweep() {
	locks, _ := filepath.Glob(filepath.Join(nsDir, "*.lock"))
	for _, lock := range locks {
		f, err := os.OpenFile(lock, os.O_RDWR, 0)
		if err != nil {
			continue // its owner was faster
		}
		path := strings.TrimSuffix(lock, ".lock")
		_, kept := os.Stat(path + ".keep")
		if kept != nil && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			removeNS(path)
		}
		_ = f.Close()
	}
}

func removeNS(path string) {
	_ = unix.Unmount(path, unix.MNT_DETACH)
	_ = os.Remove(path)
	_ = os.Remove(path + ".keep")
	_ = os.Remove(path + ".lock") // remove it last: while it exists, sweep finds what is left of the namespace
}

// Keep keeps the namespace after this process has ended: neither Close nor a later sweep removes it, only RemoveKept.
func (n *NetNS) Keep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return // a pod that was deleted
	}
	if err := os.WriteFile(n.path+".keep", nil, 0o600); err != nil {
		n.t.Fatalf("keep network namespace %s: %v", n.name, err)
	}
}

// RemoveKept removes all namespaces for which Keep was called, in this process or an earlier one. The caller ends the processes in them.
func RemoveKept() {
	kept, _ := filepath.Glob(filepath.Join(nsDir, "*.keep"))
	for _, path := range kept {
		removeNS(strings.TrimSuffix(path, ".keep"))
	}
}

// Close removes the namespace. The kernel frees it when the last socket and process in it is gone. Close may be called twice.
func (n *NetNS) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.closed = true
	n.handle.Close()
	_ = n.file.Close()
	if _, err := os.Stat(n.path + ".keep"); err != nil {
		removeNS(n.path)
	}
	_ = n.lock.Close()
}

// Name returns the name that was passed to NewNS.
func (n *NetNS) Name() string { return n.name }

// Path returns the path where the namespace is mounted, for CNI_NETNS and nsenter --net=.
func (n *NetNS) Path() string { return n.path }

// FD returns an open descriptor of the namespace, which is valid until Close.
func (n *NetNS) FD() int { return int(n.file.Fd()) }

// Inode returns the namespace's inode number, which identifies it while it exists.
func (n *NetNS) Inode() uint64 {
	info := unix.Stat_t{}
	if err := unix.Fstat(n.FD(), &info); err != nil {
		n.t.Fatalf("stat network namespace %s: %v", n.name, err)
	}
	return info.Ino
}

// Netlink returns a route netlink handle in the namespace, which is valid until Close and safe for concurrent use.
func (n *NetNS) Netlink() *netlink.Handle { return n.handle }

// Do runs f on a separate thread in the namespace and waits for it. Sockets that f opens stay in the namespace.
// Goroutines that f starts do not run in it. f may end the test with Fatal.
func (n *NetNS) Do(f func()) {
	n.t.Helper()
	if err := n.enter(f); err != nil {
		n.t.Fatalf("enter network namespace %s: %v", n.name, err)
	}
}

// enter is Do for callers that may run after Close, for example goroutines of servers. It then returns an error.
func (n *NetNS) enter(f func()) error {
	var failed error
	var panicked any
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			failed = err
			return
		}
		defer func() {
			// If the thread cannot return to the process's namespace, it stays locked, and the Go runtime ends it with this goroutine.
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = home.Close()
		}()
		if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
			failed = err
			return
		}
		defer func() { panicked = recover() }()
		f()
		returned = true
	}()
	<-done
	if failed != nil {
		return failed
	}
	switch {
	case panicked != nil:
		panic(panicked)
	case !returned:
		runtime.Goexit() // f called t.Fatal, so end the caller as if the caller had called it
	}
	return nil
}

// command prepares a command. It finds programs in the system's folders even if the caller's PATH lacks these.
func command(ctx context.Context, args ...string) *exec.Cmd {
	name := args[0]
	if !strings.Contains(name, "/") {
		if _, err := exec.LookPath(name); err != nil {
			for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
				if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
					name = filepath.Join(dir, name)
					break
				}
			}
		}
	}
	return exec.CommandContext(ctx, name, args[1:]...)
}

// Run runs a command in the namespace and returns its standard output. If the command fails, Run fails and ends the test with the command's
// output.
func (n *NetNS) Run(args ...string) string {
	n.t.Helper()
	return n.RunInput("", args...)
}

// RunInput is Run with text for the command's standard input.
func (n *NetNS) RunInput(stdin string, args ...string) string {
	n.t.Helper()
	out, err := n.TryRun(stdin, args...)
	if err != nil {
		n.t.Fatalf("in %s: %v", n.name, err)
	}
	return out
}

// TryRun is RunInput for commands that may fail. The error has the command and its output.
func (n *NetNS) TryRun(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	cmd := command(ctx, args...)
	var out, both bytes.Buffer
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &out, &both
	var err error
	n.Do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, both.String(), out.String())
	}
	return out.String(), nil
}

// Sysctl sets a sysctl in the namespace; a slash in key stands for a dot in an interface's name.
func (n *NetNS) Sysctl(key, value string) {
	n.t.Helper()
	var err error
	n.Do(func() { err = os.WriteFile(sysctlPath(key), []byte(value), 0) })
	if err != nil {
		n.t.Fatalf("in %s: set sysctl %s: %v", n.name, key, err)
	}
}

// HasSysctl reports whether the namespace has a sysctl.
func (n *NetNS) HasSysctl(key string) bool {
	var err error
	n.Do(func() { _, err = os.Stat(sysctlPath(key)) })
	return !errors.Is(err, os.ErrNotExist)
}
