package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/testutil"
)

// What the network's file looks like in the middle of things: installers that are killed, and owners that write meanwhile.

// built is the installer as a program of its own, so that it can be killed.
func built(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "neardns-install")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// release is the network's text as its owner wrote it the k-th time.
func release(text string, k int) string {
	return strings.Replace(text, "{", fmt.Sprintf("{\n  \"release\": %d,", k), 1)
}

// during runs f over and over beside what the test does, until the returned function is called.
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

// owner writes the network's file as the well-behaved do: whole, by a rename.
func (n *node) owner(name, text string) error {
	temp := filepath.Join(filepath.Dir(n.conf), "owner.tmp")
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(n.conf, name))
}

// wantWhole looks as a runtime does and returns an error unless it finds what the owner wrote at some time, with our entry or
// without.
func (n *node) wantWhole() error {
	var names []string
	// A folder may be listed without a file that changes its name in that moment; a runtime is told of the change and looks again.
	for look := 0; len(names) == 0; look++ {
		var err error
		if names, err = networks(n.conf); err != nil || look == 10 {
			return fmt.Errorf("the runtime finds no network: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(n.conf, names[0]))
	if errors.Is(err, os.ErrNotExist) {
		return nil // changed its name meanwhile: the same
	}
	if err != nil {
		return err
	}
	number := regexp.MustCompile(`"release": (\d+)`).FindSubmatch(text)
	if number == nil {
		return fmt.Errorf("%s was written by nobody:\n%s", names[0], text)
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

// kubeovn/kube-ovn#7035: truncated by a power cut. Here the installer is killed at random points, of an installation, of the
// conversion of a .conf, and of an uninstallation, while the owner writes as well: at every moment a runtime finds a whole list
// and a whole binary, or none, and the next run mends what is left.
func TestBug10KilledAtAnyPoint(t *testing.T) {
	bin := built(t)
	rounds := 40
	if testing.Short() {
		rounds = 15
	}
	for name, tc := range map[string]struct{ file, text, verb string }{
		"install":    {"10-a.conflist", mainList, "install"},
		"conversion": {"10-a.conf", mainConf, "install"},
		"uninstall":  {"10-a.conflist", mainList, "uninstall"},
		"and back":   {"10-a.conf", mainConf, "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			args := slices.Concat([]string{"install", "--force", "--cni-bin", n.bin, "--cni-conf", n.conf}, n.args)
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
			// More than a run takes: the first one that is done tells how long that is. From a short time on it could take all rounds to
			// reach that of a busy disk.
			killed, took := 0, time.Second
			for k := 1; k <= rounds; k++ {
				if tc.verb == "uninstall" {
					n.mustInstall()
				} else {
					_ = os.Remove(filepath.Join(n.bin, "neardns"))
				}
				cmd := exec.CommandContext(t.Context(), bin, args...)
				started := time.Now()
				testutil.Must(t, cmd.Start())
				// Both at a moment of their own within the time that a run takes here.
				kill := time.AfterFunc(rand.N(took), func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
				write := make(chan error, 1)
				time.AfterFunc(rand.N(took), func() { write <- n.owner(tc.file, release(tc.text, k)) })
				if cmd.Wait() != nil {
					killed++
					took += took / 10 // it may have become slower
				} else {
					took = time.Since(started)
				}
				kill.Stop()
				testutil.Must(t, <-write)
			}
			if err := runtime(); err != nil {
				t.Error(err)
			}
			if killed == 0 || killed == rounds {
				t.Errorf("%d of %d were killed: nothing was tried", killed, rounds)
			}
			t.Logf("%d of %d runs were killed", killed, rounds)
			code, out := n.install()
			want(t, code, 0, out)
			n.wantTypes("10-a.conflist", map[string]string{mainList: "flannel", mainConf: "bridge"}[tc.text], "neardns")
			if left := append(n.files(n.bin), n.files(n.conf)...); !slices.Equal(left, []string{"neardns", "10-a.conflist"}) {
				t.Errorf("left behind: %q", left)
			}
			code, out = n.uninstall("--remove-binary")
			want(t, code, 0, out)
			if left := append(n.files(n.bin), n.files(n.conf)...); !slices.Equal(left, []string{tc.file}) || n.wantWhole() != nil {
				t.Errorf("after it was uninstalled there is %q: %v", left, n.wantWhole())
			}
		})
	}
}

// The owner's newer text comes while we write ours, at any moment of it, by a rename or in place: it is never lost, and never
// replaced by an older one with our entry.
func TestBug11OwnerWritesWhileWeDo(t *testing.T) {
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
			rounds := 120
			if testing.Short() {
				rounds = 30
			}
			late, took := 0, 5*time.Millisecond
			for k := range rounds {
				testutil.Must(t, n.owner(tc.file, release(tc.text, 2*k)))
				c, err := planAppend(n.conf, "", []byte(testEntry))
				if err != nil {
					t.Fatal(err)
				}
				newer := release(tc.text, 2*k+1)
				var wg sync.WaitGroup
				start, delay := make(chan struct{}), rand.N(took)
				wg.Go(func() {
					<-start
					spin(delay)
					write := n.owner
					if tc.inPlace {
						write = func(_, text string) error { return os.WriteFile(file, []byte(text), 0o644) }
					}
					if err := write(tc.file, newer); err != nil {
						t.Error(err)
					}
				})
				close(start)
				begin := time.Now()
				err = c.apply()
				if err == nil {
					took = time.Since(begin) - 20*time.Millisecond + time.Millisecond // of a whole one: so all of its moments are met
				}
				wg.Wait()
				if err != nil && !errors.Is(err, atomicfile.ErrMoved) {
					t.Fatal(err)
				}
				if errors.Is(err, atomicfile.ErrMoved) {
					late++
					took += took / 10 // where the disk is slow he may come first each time
				}
				if got, err := os.ReadFile(file); err != nil || string(got) != newer {
					t.Fatalf("round %d: the owner's text is lost (apply: %v): %v\n%s", k, err, err, got)
				}
			}
			if late == 0 || late == rounds {
				t.Errorf("the owner came between in %d of %d rounds: nothing was tried", late, rounds)
			}
			t.Logf("the owner came between in %d of %d rounds", late, rounds)
			code, out := n.install()
			want(t, code, 0, out)
			if text := n.read("10-a.conflist"); !strings.Contains(text, fmt.Sprintf(`"release": %d,`, 2*rounds-1)) {
				t.Errorf("an old text came back:\n%s", text)
			}
			if left := n.files(n.conf); !slices.Equal(left, []string{"10-a.conflist"}) {
				t.Errorf("left behind: %q", left)
			}
			code, out = n.uninstall("--remove-binary")
			want(t, code, 0, out)
			if left := append(n.files(n.bin), n.files(n.conf)...); !slices.Equal(left, []string{tc.file}) || n.wantWhole() != nil {
				t.Errorf("after it was uninstalled there is %q: %v", left, n.wantWhole())
			}
		})
	}
}

// spin waits for less than a timer can.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		continue
	}
}

// aws/amazon-vpc-cni-k8s#935: "text file busy" and half binaries while pods start. The plugin is called all the time while
// releases of it replace each other.
func TestBug10ReplacedWhileInUse(t *testing.T) {
	bin := built(t)
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	// The installer itself, as a program with a shebang would not do: the kernel refuses to run a binary that is open for writing.
	plugin := filepath.Join(t.TempDir(), "plugin")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", plugin, "../plugins/neardns")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(plugin)
	if err != nil {
		t.Fatal(err)
	}
	install := func(k int) {
		t.Helper()
		n.write(n.plugin, string(program)+fmt.Sprint(k), 0o755) // what follows an ELF file is of no meaning
		args := slices.Concat([]string{"install", "--force", "--cni-bin", n.bin, "--cni-conf", n.conf}, n.args)
		if out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput(); err != nil || !strings.Contains(string(out),
			"wrote "+n.bin+"/neardns") {
			t.Fatalf("release %d: %v\n%s", k, err, out)
		}
	}
	install(0)
	calls := 0
	pods := during(func() error {
		calls++
		_, err := askVersion(context.Background(), filepath.Join(n.bin, "neardns"))
		return err
	})
	for k := 1; k <= 10; k++ {
		install(k)
	}
	if err := pods(); err != nil {
		t.Errorf("call %d: %v", calls, err)
	}
	if calls < 3 {
		t.Errorf("only %d calls were made", calls)
	}
}
