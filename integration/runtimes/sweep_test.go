package runtimes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// A test that is killed takes its containerd with it, but not the shims, the pods and what is mounted for them: these have no
// parent that would end them. So each node is noted, and the next run takes away what has no owner left.
const notes = "/run/neardns-runtimes"

// note is one node's.
type note struct {
	Dir, CGroup string
}

// register notes a node until the test ends.
func register(t *testing.T, n note) {
	t.Helper()
	text, err := json.Marshal(n)
	testutil.Must(t, err)
	file := filepath.Join(notes, fmt.Sprintf("%d-%s", os.Getpid(), n.CGroup))
	testutil.Must(t, errors.Join(os.MkdirAll(notes, 0o755), os.WriteFile(file, text, 0o600)))
	t.Cleanup(func() {
		_ = os.Remove(file)
		_ = os.Remove(notes) // the last one
	})
}

// sweep takes away the nodes of runs that are gone.
func sweep(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(notes, "*"))
	testutil.Must(t, err)
	for _, file := range files {
		pid, _, _ := strings.Cut(filepath.Base(file), "-")
		if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			continue // it lives
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue // another run was faster
		}
		var n note
		if err := json.Unmarshal(text, &n); err == nil && n.Dir != "" {
			t.Logf("left by a run that was killed: %s", n.Dir)
			n.remove(t)
		}
		_ = os.Remove(file)
	}
}

// remove does what it can: what is not there any more needs no word. The netns of a pod that was being made in that moment is in
// no record, and stays.
func (n note) remove(t *testing.T) {
	t.Helper()
	bundles, _ := filepath.Glob(filepath.Join(n.Dir, "state/io.containerd.runtime.v2.task/k8s.io/*"))
	var netns []string
	for _, bundle := range bundles {
		netns = append(netns, bundleNetNS(bundle))
	}
	for _, pid := range slices.Concat(n.shims(), n.members()) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, path := range netns {
		if path != "" {
			_ = unix.Unmount(path, unix.MNT_DETACH)
			_ = os.Remove(path)
		}
	}
	for _, bundle := range bundles {
		kept, _ := filepath.Glob("/var/lib/cni/results/*-" + filepath.Base(bundle) + "-*")
		for _, file := range kept {
			_ = os.Remove(file)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for _, line := range slices.Backward(strings.Split(string(mounts), "\n")) { // the last is the uppermost
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], n.Dir+"/") {
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
	testutil.Eventually(t, func() error { return removeControlGroups(n.CGroup) }) // once the killed are gone
	_ = os.RemoveAll(n.Dir)
	_ = os.Remove(filepath.Dir(n.Dir)) // the test's own
}

// bundleNetNS is the netns that a container was put into.
func bundleNetNS(bundle string) string {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return ""
	}
	var spec struct {
		Linux struct {
			Namespaces []struct{ Type, Path string }
		}
	}
	if json.Unmarshal(text, &spec) != nil {
		return ""
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == "network" && strings.HasPrefix(filepath.Base(ns.Path), "cni-") {
			return ns.Path
		}
	}
	return ""
}

// shims are the processes that were informed of this node's socket.
func (n note) shims() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		words := strings.Split(string(text), "\x00")
		if at := slices.Index(words, "-address"); at > 0 && len(words) > at+1 && words[at+1] == filepath.Join(n.Dir, "c.sock") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// cgroups are the node's control groups, those of the pods before those that hold them.
func (n note) cgroups() []string {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + n.CGroup)
	var all []string
	for _, top := range append(tops, "/sys/fs/cgroup/"+n.CGroup) {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() { // one that is gone is none
				all = append(all, path)
			}
			return nil
		})
	}
	slices.Reverse(all)
	return all
}

// members are the processes of the pods.
func (n note) members() []int {
	var pids []int
	for _, folder := range n.cgroups() {
		text, _ := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
