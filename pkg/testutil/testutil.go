// Package testutil has what kernel tests need: network namespaces with links and addresses, scripted DNS servers, clients
// that see which address answered, kube-proxy's rules, and a whole node made of these.
//
// It must never touch the network namespace of the process itself: every link, address, rule and sysctl goes into a
// namespace that it made. It is imported by tests and by the programs of integration/, never by a product.
//
// Failure policy: an error ends the test through Fatalf, with the command and its output if there is one. Cleanup removes everything
// that was made, also after a failure, and the next test run removes the namespaces that a killed one left.
package testutil

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// TB is the part of testing.TB that the package needs, so that programs may use it as well. Fatalf must not return.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// Skip ends a test that cannot run here. It prints one stable line per skip, "SKIP-REASON: <test>: <reason>", which CI
// compares with the list of allowed skips: an unexpected skip must not count as a success.
func Skip(t testing.TB, reason string) {
	t.Helper()
	// Do not use t.Log, whose lines appear only with -v.
	fmt.Printf("SKIP-REASON: %s: %s\n", t.Name(), reason)
	t.Skip(reason)
}

// RequireRoot makes a test one of the kernel tier (CONTRIBUTING.md, "Tests"). With -short, the test is skipped. If the test does not run
// as root, it is skipped, too; in CI (the variable CI or NEARDNS_REQUIRE_ROOT is set) it fails instead.
func RequireRoot(t testing.TB) {
	t.Helper()
	if testing.Short() {
		Skip(t, "unit tests only")
	}
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" || os.Getenv("NEARDNS_REQUIRE_ROOT") != "" {
		t.Fatalf("needs root: network namespaces and packet rules cannot be made as uid %d", os.Geteuid())
	}
	Skip(t, "needs root")
}

// RequireSysctl skips a test if the kernel has no sysctl key in ns, for example net.bridge.bridge-nf-call-iptables.
func RequireSysctl(t testing.TB, ns *NetNS, key string) {
	t.Helper()
	if !ns.HasSysctl(key) {
		Skip(t, "kernel has no sysctl "+key)
	}
}

// Slowness returns the factor by which this machine is slower than a real one, from the variable NEARDNS_SLOWNESS; 1 by default. Software
// emulation takes about ten times as long. A test multiplies by Slowness the time that it adds to a promised time for busy machines.
func Slowness() time.Duration {
	n, err := strconv.Atoi(os.Getenv("NEARDNS_SLOWNESS"))
	if err != nil {
		return 1
	}
	return time.Duration(max(n, 1))
}

// Patience returns the maximum time that a kernel test waits for a process, a rule or an answer that must come. It is the same in all tests
// and far above the time that anything takes, so that it ends a test that hangs but does not judge speed. Timing tests judge speed.
func Patience() time.Duration { return time.Minute * Slowness() }

// Attempt is how long one query waits for its answer. It is far above the time that an answer takes, and Eventually has time for several
// attempts.
const Attempt = 10 * time.Second

// Silence is how long a test waits for an answer that must not come. A shorter time can only let a fault pass, never fail a test.
const Silence = time.Second

// Context returns a context that ends with the test, and after Patience at the latest.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience())
	t.Cleanup(cancel)
	return ctx
}

// Receive waits for a value from c and returns it. If none comes within Patience, it fails and ends the test.
func Receive[T any](t TB, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(Patience()):
		t.Fatalf("nothing was received within %v", Patience())
	}
	return value
}

// Eventually calls f until f returns nil. If this takes longer than Patience, it fails and ends the test with f's last error.
func Eventually(t TB, f func() error) {
	t.Helper()
	Within(t, Patience(), f)
}

// Within is Eventually with another limit than Patience, for steps that take longer, for example the start of a cluster.
func Within(t TB, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
			return
		}
		time.Sleep(pause)
	}
}

// Must fails and ends the test if err is not nil.
func Must(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Check fails the test, which goes on, if err is not nil. when is printed before the error.
func Check(t testing.TB, err error, when ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%s%v", strings.Join(append(when, ""), ": "), err)
	}
}

// WantError fails the test, which goes on, unless err has a text. when is printed before it.
func WantError(t testing.TB, err error, text string, when ...string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%serror %v, want one with %q", strings.Join(append(when, ""), ": "), err, text)
	}
}

// ErrorIf returns an error with a text if something is wrong, for functions that Eventually calls.
func ErrorIf(wrong bool, format string, args ...any) error {
	if wrong {
		return fmt.Errorf(format, args...)
	}
	return nil
}

// Equal fails the test, which goes on, if got differs from want, and shows the differences. Without options, addresses are compared by ==.
func Equal[T any](t testing.TB, what string, want, got T, options ...cmp.Option) {
	t.Helper()
	if len(options) == 0 {
		options = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})}
	}
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Untar reads an archive of tar, perhaps of gzip, and returns its files' contents by their names without prefix.
func Untar(t testing.TB, r io.Reader, prefix string) map[string]string {
	t.Helper()
	in := bufio.NewReader(r)
	var packed *tar.Reader
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		zipped, err := gzip.NewReader(in)
		Must(t, err)
		packed = tar.NewReader(zipped)
	} else {
		packed = tar.NewReader(in)
	}
	files := map[string]string{}
	for {
		head, err := packed.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		Must(t, err)
		text, err := io.ReadAll(packed)
		Must(t, err)
		files[strings.TrimPrefix(head.Name, prefix)] = string(text)
	}
}

// WithoutCapabilities runs f as root on a thread without capabilities, as in a container that drops all of them.
func WithoutCapabilities(t TB, f func()) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err = unix.Capset(&header, &none[0]); err == nil {
			f()
		}
	}()
	<-done
	Must(t, err)
}

// WriteFile writes text to the file at path. It renames the new file into place, as the kubelet does with a ConfigMap's files, and makes
// the folder if it is missing.
func WriteFile(t TB, path, text string) {
	t.Helper()
	Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)))
}

// ReadFile returns the text of the file at path.
func ReadFile(t TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	Must(t, err)
	return string(text)
}

// WantFile fails the test unless the file at path has this text.
func WantFile(t testing.TB, path, want string) {
	t.Helper()
	Equal(t, path, want, ReadFile(t, path))
}

// sysctlPath returns the file of a sysctl key, for example of "net.ipv4.conf.eth0/1.forwarding". As in sysctl(8), a slash stands for a dot
// in a name.
func sysctlPath(key string) string {
	b := []byte(key)
	for i, c := range b {
		switch c {
		case '.':
			b[i] = '/'
		case '/':
			b[i] = '.'
		}
	}
	return filepath.Join("/proc/sys", string(b))
}
