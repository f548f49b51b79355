//go:build timing

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// Limits of the role's cost, once it has started.
const (
	hostsMemory = 24 << 20 // bytes
	hostsCPU    = 0.0005   // of a core
)

// comesBack reports whether the file begins with a text again within a second.
func (n *hostsNode) comesBack(text string) bool {
	n.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Second; <-time.After(5 * time.Millisecond) {
		if strings.HasPrefix(n.text(), text) {
			return true
		}
	}
	return false
}

// TestTimingHostsInTrouble runs the role itself for NEARDNS_HOSTS_MINUTES (make test-hosts: 10), or for one. During trouble with kube-dns,
// and after a reboot in the middle of it, not a byte of the file changes. If another program rewrites the file every second, nothing of
// its text is lost, and the lines come back within a second at first. Without trouble, the role costs next to nothing.
//
// State: TestHostsInTrouble. Bound: TestPace (agent/internal/hostsfile), TestFlapping (agent/internal/node/backoff).
func TestTimingHostsInTrouble(t *testing.T) {
	testutil.RequireRoot(t)
	lasts, whole := time.Minute, false
	if n, err := strconv.Atoi(os.Getenv("NEARDNS_HOSTS_MINUTES")); err == nil {
		lasts, whole = time.Duration(n)*time.Minute, true
	}
	bin := hostsProgram(t)
	if whole {
		compat.Say(t, "hosts", "kube-dns gone, silent, SERVFAIL; a reboot amid it", fmt.Sprintf("not a byte changes in %s", lasts))
	}
	for name, trouble := range hostsTroubles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newHostsNode(t, bin)
			var was unix.Stat_t
			testutil.Must(t, unix.Stat(n.file(), &was))
			trouble(n)
			rebooted := false
			for begin := time.Now(); time.Since(begin) < lasts; <-time.After(20 * time.Millisecond) {
				if !rebooted && time.Since(begin) > lasts/2 {
					n.reboot()
					rebooted = true
				}
				var now unix.Stat_t
				if err := unix.Stat(n.file(), &now); err != nil || now.Ino != was.Ino || now.Ctim != was.Ctim {
					t.Fatalf("after %s it was written (%v):\n%s\n%s", time.Since(begin), err, n.text(), n.running.Output())
				}
			}
			testutil.Equal(t, "hosts file", ownLines+registryLines, n.text())
		})
	}
	t.Run("two of them", func(t *testing.T) {
		t.Parallel()
		newHostsNode(t, bin).withSecond(func() { <-time.After(lasts) })
	})
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		<-time.After(2 * time.Second) // its start is over
		before := cpuTime(t, n.running.PID())
		<-time.After(lasts)
		used, memory := cpuTime(t, n.running.PID())-before, memoryOf(t, n.running.PID(), "VmRSS")
		share := used.Seconds() / lasts.Seconds()
		t.Logf("%.1f MiB resident, %.1f of them its own and not of the program's file; %s of CPU in %s: %.4f %% of a core", float64(memory)/(1<<20),
			float64(memoryOf(t, n.running.PID(), "RssAnon"))/(1<<20), used, lasts, 100*share)
		if memory > hostsMemory && os.Getenv("NEARDNS_BUILT") != "" { // of the stripped program that make builds: its pages count
			t.Errorf("it takes more than %d MiB", hostsMemory>>20)
		}
		if whole {
			compat.Say(t, "hosts", "cost on a node", fmt.Sprintf("%.1f MiB resident (%.1f without the pages of the program's file), %.3f %% of a core",
				float64(memory)/(1<<20), float64(memoryOf(t, n.running.PID(), "RssAnon"))/(1<<20), 100*share))
		}
		if share > hostsCPU {
			t.Errorf("it takes more than %.2f %% of a core", 100*hostsCPU)
		}
	})
	t.Run("rewritten every second", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		every, times := time.Second, 60
		lost, back, longest := 0, 0, time.Duration(0)
		text := ""
		for i := range times {
			text = ownLines + fmt.Sprintf("192.0.2.1\tprinter-%d\n", i)
			testutil.Must(t, errors.Join(os.WriteFile(n.dir+"/etc/new", []byte(text), 0o644), os.Rename(n.dir+"/etc/new", n.file())))
			for begin, seen := time.Now(), false; time.Since(begin) < every; <-time.After(5 * time.Millisecond) {
				got := n.text()
				// If both write at the same moment, the two texts are swapped and swapped back, so one reading proves nothing.
				if !strings.HasPrefix(got, text) && !n.comesBack(text) {
					lost++
				}
				if !seen && got == text+registryLines {
					seen = true
					back++
					if back <= 9 { // then it is a fight
						longest = max(longest, time.Since(begin))
					}
				}
			}
		}
		n.becomes(text + registryLines)
		state := n.state(n.dir + "/run")
		if whole {
			compat.Say(t, "hosts", "another program takes the lines out again and again", fmt.Sprintf("within %d ms at first; less often where it goes on (%d of %d times in a minute), "+
				"and reported once", longest.Milliseconds(), back, times))
		}
		t.Logf("%d times rewritten, %d times the lines came back meanwhile, at first after %s; %d repairs", times, back, longest, state.Repairs)
		if lost > 0 {
			t.Errorf("in %d reads another's text is not there", lost)
		}
		if longest > time.Second || back < 9 || state.Repairs > times/2 {
			t.Error("the lines come back within a second at first, then less often")
		}
		testutil.Equal(t, "times that the log reports another writer", 1, strings.Count(n.running.Output(), "another program keeps changing"))
	})
}

// cpuTime returns the CPU time that all threads of a process have used so far.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d threads: %v", len(tasks), err)
	}
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64) // ns on a CPU (Documentation/scheduler/sched-stats.rst)
		testutil.Must(t, err)
		sum += time.Duration(n)
	}
	return sum
}

// memoryOf returns the value of a line of /proc/PID/status, in bytes.
func memoryOf(t *testing.T, pid int, name string) int {
	t.Helper()
	_, after, _ := strings.Cut(testutil.ReadFile(t, fmt.Sprintf("/proc/%d/status", pid)), name+":")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	testutil.Must(t, err)
	return kib << 10
}
