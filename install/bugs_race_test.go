package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/testutil"
)

// Races for the network's file: installers are killed, and the file's owner writes at the same time.

// built builds the installer and returns the program's path, for tests that kill it or run it as another user.
func built(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "neardns-install")
	testutil.Build(t, bin, ".")
	return bin
}

// release is the network's text as its owner wrote it the k-th time.
func release(text string, k int) string {
	return strings.Replace(text, "{", fmt.Sprintf("{\n  \"release\": %d,", k), 1)
}

// during runs f over and over alongside the test, until the returned function is called.
func during(f func() error) (end func() error) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := f(); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() error { close(stop); return <-done }
}

// owner writes the network's file as its owner should: in one step, by a rename.
func (n *node) owner(name, text string) error {
	temp := filepath.Join(filepath.Dir(n.conf), "owner.tmp")
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(n.conf, name))
}

// wantWhole reads the folder as a runtime does. It returns an error unless it finds a text that the owner wrote at some time, with or
// without our entry.
func (n *node) wantWhole() error {
	var names []string
	// A list of the folder may lack a file whose name changes meanwhile; a runtime gets an event for that and lists again.
	for look := 0; len(names) == 0; look++ {
		var err error
		if names, err = networks(n.conf); err != nil || look == 10 {
			return fmt.Errorf("the runtime finds no network: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(n.conf, names[0]))
	if errors.Is(err, os.ErrNotExist) {
		return nil // its name changed meanwhile
	}
	if err != nil {
		return err
	}
	number := regexp.MustCompile(`"release": (\d+)`).FindSubmatch(text)
	if number == nil {
		return fmt.Errorf("%s was written by nobody:\n%s", names[0], text)
	}
	if list := bytes.Contains(text, []byte(`"plugins"`)); list != (filepath.Ext(names[0]) == ".conflist") {
		return fmt.Errorf("%s has the text of another kind of file, which go-cni refuses (istio/istio):\n%s", names[0], text)
	}
	k, _ := strconv.Atoi(string(number[1]))
	for _, main := range []string{mainList, mainConf} {
		without := []byte(release(main, k))
		if bytes.Equal(text, without) {
			return nil
		}
		if main == mainConf {
			if without, err = conflist.FromPlugin(without); err != nil {
				return err
			}
		}
		with, err := conflist.Append(without, []byte(testEntry))
		if err != nil {
			return err
		}
		if bytes.Equal(text, without) || bytes.Equal(text, with) {
			return nil
		}
	}
	return fmt.Errorf("%s is neither the old nor the new one:\n%s", names[0], text)
}

// kubeovn/kube-ovn#7035: a power cut truncated the file. Here the installer is killed at each file event of an installation, of the
// conversion of a .conf, and of an uninstallation, while the owner writes too. At every moment a runtime finds a complete list, and a
// complete binary or none, and the next run completes the work.
func TestBug10KilledAtAnyPoint(t *testing.T) {
	testutil.RequireRoot(t) // starts programs
	bin := built(t)
	for name, tc := range map[string]struct{ file, text, verb string }{
		"install":    {"10-a.conflist", mainList, "install"},
		"conversion": {"10-a.conf", mainConf, "install"},
		"uninstall":  {"10-a.conflist", mainList, "uninstall"},
		"and back":   {"10-a.conf", mainConf, "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			args := n.command("install")
			if tc.verb == "uninstall" {
				args = []string{"uninstall", "--cni-bin", n.bin, "--cni-conf", n.conf, "--cni-cache", n.cache(), "--remove-binary"}
			}
			testutil.Must(t, n.owner(tc.file, release(tc.text, 0)))
			runtime := during(func() error {
				if plugin, err := os.ReadFile(filepath.Join(n.bin, "neardns")); err == nil && string(plugin) != testPlugin {
					return fmt.Errorf("half a binary: %q", plugin)
				}
				return n.wantWhole()
			})
			killed, reached := 0, true
			for k := 1; reached && k <= 200; k++ {
				if tc.verb == "uninstall" {
					n.install(0)
				} else {
					_ = os.Remove(filepath.Join(n.bin, "neardns"))
				}
				cmd := exec.CommandContext(t.Context(), bin, args...)
				start := make(chan struct{})
				kill := atEvent(t, k, func() { <-start; _ = cmd.Process.Signal(syscall.SIGKILL) }, n.bin, n.conf)
				write := func() error { return n.owner(tc.file, release(tc.text, k)) }
				var written error
				owner := atEvent(t, (k+1)/2, func() { written = write() }, n.bin, n.conf)
				testutil.Must(t, cmd.Start())
				close(start)
				if cmd.Wait() != nil {
					killed++
				}
				reached = kill()
				if !owner() {
					written = write()
				}
				testutil.Must(t, written)
			}
			testutil.Check(t, runtime())
			if killed == 0 || reached {
				t.Errorf("%d runs were killed, and one ended by itself: %v", killed, !reached)
			}
			t.Logf("%d runs were killed", killed)
			n.install(0)
			n.wantTypes("10-a.conflist", map[string]string{mainList: "flannel", mainConf: "bridge"}[tc.text], "neardns")
			n.wantUninstalled(tc.file)
		})
	}
}

// wantUninstalled checks that there are only the files of the installation, uninstalls, and checks that only the owner's file is left.
func (n *node) wantUninstalled(file string) {
	n.t.Helper()
	testutil.Equal(n.t, "installed", []string{"neardns", "10-a.conflist"}, n.files(n.bin, n.conf))
	n.uninstall(0, "--remove-binary")
	testutil.Equal(n.t, "after it was uninstalled", []string{file}, n.files(n.bin, n.conf))
	testutil.Check(n.t, n.wantWhole())
}

// The owner writes a newer text by a rename or in place while we write ours, in each round at a later file event. The newer text is never
// lost, and never replaced by an older one with our entry.
func TestBug11OwnerWritesWhileWeDo(t *testing.T) {
	testutil.RequireRoot(t) // watches files
	for name, tc := range map[string]struct {
		file, text string
		inPlace    bool
	}{
		"by rename":            {"10-a.conflist", mainList, false},
		"in place":             {"10-a.conflist", mainList, true},
		"by rename, of a conf": {"10-a.conf", mainConf, false},
		"in place, of a conf":  {"10-a.conf", mainConf, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			file := filepath.Join(n.conf, tc.file)
			late, rounds := 0, 0
			for reached := true; reached && rounds <= 200; rounds++ {
				testutil.Must(t, n.owner(tc.file, release(tc.text, 2*rounds)))
				c, err := planAppend(n.conf, "", []byte(testEntry))
				testutil.Must(t, err)
				newer := release(tc.text, 2*rounds+1)
				write := func() error { return n.owner(tc.file, newer) }
				if tc.inPlace {
					write = func() error { return os.WriteFile(file, []byte(newer), 0o644) }
				}
				var written error
				if rounds == 0 { // before the first event
					testutil.Must(t, write())
					err = c.apply()
				} else {
					owner := atEvent(t, rounds, func() { written = write() }, n.conf)
					err = c.apply()
					if reached = owner(); !reached {
						written = write()
					}
				}
				testutil.Must(t, written)
				switch { // the owner's write may still be under way (ErrOpen), or be complete (ErrMoved)
				case errors.Is(err, atomicfile.ErrMoved), errors.Is(err, atomicfile.ErrOpen):
					late++
				case err != nil:
					t.Fatal(err)
				}
				if got, err := os.ReadFile(file); err != nil || string(got) != newer {
					t.Fatalf("round %d: the owner's text is lost (apply: %v): %v\n%s", rounds, err, err, got)
				}
			}
			if late == 0 || late == rounds {
				t.Errorf("the owner came between in %d of %d rounds: nothing was tried", late, rounds)
			}
			t.Logf("the owner came between in %d of %d rounds", late, rounds)
			n.install(0)
			if text := n.read("10-a.conflist"); !strings.Contains(text, fmt.Sprintf(`"release": %d,`, 2*rounds-1)) {
				t.Errorf("an old text came back:\n%s", text)
			}
			n.wantUninstalled(tc.file)
		})
	}
}

// atEvent calls f at the n-th change in the folders. The function returned ends that, and reports whether f was called.
func atEvent(t *testing.T, n int, f func(), folders ...string) (end func() bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	testutil.Must(t, err)
	events := os.NewFile(uintptr(fd), "inotify")
	for _, dir := range folders {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_CLOSE_WRITE|unix.IN_MOVE|unix.IN_DELETE); err != nil {
			t.Fatal(err)
		}
	}
	last := t.TempDir() // its event comes after all events of earlier changes
	mark, err := unix.InotifyAddWatch(fd, last, unix.IN_CREATE)
	testutil.Must(t, err)
	called := make(chan bool)
	go func() {
		seen, buf := 0, make([]byte, 4096)
		for {
			got, err := events.Read(buf)
			if err != nil {
				t.Errorf("read file events: %v", err)
				called <- false
				return
			}
			for at := 0; at < got; at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:])) {
				if int(int32(binary.NativeEndian.Uint32(buf[at:]))) == mark { //nolint:gosec // a watch descriptor is an int32
					called <- seen >= n
					return
				}
				if seen++; seen == n {
					f()
				}
			}
		}
	}()
	return func() bool {
		defer events.Close()
		testutil.Must(t, os.Mkdir(filepath.Join(last, "end"), 0o700))
		return <-called
	}
}

// aws/amazon-vpc-cni-k8s#935: "text file busy" and half-written binaries while pods start. The test calls the plugin all the time
// while each release replaces the one before.
func TestBug10ReplacedWhileInUse(t *testing.T) {
	bin := built(t)
	n := flannelNode(t)
	// The plugin must be a binary, not a script: the kernel refuses to run a binary that is open for writing.
	testutil.Must(t, os.Remove(n.plugin))
	testutil.Build(t, n.plugin, "../plugins/neardns")
	program := testutil.ReadFile(t, n.plugin)
	install := func(k int) {
		t.Helper()
		n.write(n.plugin, program+fmt.Sprint(k), 0o755) // text after the end of an ELF file has no effect
		out, err := exec.CommandContext(t.Context(), bin, n.command("install")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "wrote "+n.bin+"/neardns") {
			t.Fatalf("release %d: %v\n%s", k, err, out)
		}
	}
	install(0)
	calls := 0
	pods := during(func() error {
		calls++
		_, err := queryVersions(context.Background(), filepath.Join(n.bin, "neardns"))
		return err
	})
	for k := 1; k <= 5; k++ {
		install(k)
	}
	testutil.Check(t, pods(), "a call")
	if calls < 3 {
		t.Errorf("only %d calls were made", calls)
	}
}
