package callers

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// snapshot is all of a node that neardns could leave a trace in: a line a thing, by its name.
type snapshot map[string]string

// volatile are settings of the kernel that count or measure, and so differ by themselves.
func volatile(key string) bool {
	return strings.HasSuffix(key, "nf_conntrack_count") || strings.HasPrefix(key, "net/core/") || strings.HasSuffix(key, "/stat_refresh") || strings.HasSuffix(key, "stable_secret")
}

// snapshot takes one of the node. What the main network and the runtime keep for pods is theirs: ipam and cache are left out.
func (n *node) snapshot() snapshot {
	n.t.Helper()
	s := snapshot{}
	for name, command := range map[string][]string{
		"links":     {"ip", "-o", "-d", "link", "show"},
		"addresses": {"ip", "-o", "address", "show"},
		"routes":    {"ip", "route", "show", "table", "all"},
		"routes 6":  {"ip", "-6", "route", "show", "table", "all"},
		"rules":     {"ip", "rule", "show"},
		"rules 6":   {"ip", "-6", "rule", "show"},
		"qdiscs":    {"tc", "qdisc", "show"},
		"nftables":  {"nft", "-s", "list", "ruleset"},
		// Both kinds of iptables; saving makes no table that is not there.
		"iptables-legacy":  {"iptables-legacy-save"},
		"ip6tables-legacy": {"ip6tables-legacy-save"},
	} {
		for line := range strings.Lines(n.Host.Run(command...)) {
			// Times and counts, and what a pod's link that came and went leaves of its number.
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
				s[name+": "+stable(line)] = ""
			}
		}
	}
	n.Host.Do(func() { s.settings("/proc/sys/net", n.t.Errorf) })
	pins, _ := filepath.Glob("/sys/fs/bpf/*neardns*") // the machine's: others' come and go
	for _, pin := range pins {
		s["pin "+pin] = ""
	}
	s.files(n.dir, []string{n.path("ipam"), n.cache()}, n.t.Errorf)
	return s
}

// stable takes out of a line what the kernel counts on: expiry, lifetimes.
func stable(line string) string {
	fields := strings.Fields(line)
	for i := 0; i+1 < len(fields); i++ {
		if slices.Contains([]string{"expires", "valid_lft", "preferred_lft", "bridge_id", "designated_root", "hello_timer", "gc_timer", "tcn_timer", "topology_change_timer"}, fields[i]) {
			fields[i+1] = "*"
		}
	}
	return strings.Join(fields, " ")
}

// settings reads every setting below a folder that can be read.
func (s snapshot) settings(root string, failed func(string, ...any)) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a link's settings go with it
		}
		key := strings.TrimPrefix(path, "/proc/sys/")
		if value, err := os.ReadFile(path); err == nil && !volatile(key) {
			s["setting "+key] = string(value)
		}
		return nil
	})
	if err != nil {
		failed("%v", err)
	}
}

// files notes each file with its bytes, mode, owner, and where it is not a list that is rewritten, its time.
func (s snapshot) files(root string, without []string, failed func(string, ...any)) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if slices.Contains(without, path) {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%v of %d:%d", info.Mode(), owner.Uid, owner.Gid)
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " to " + target
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(content))
			if filepath.Ext(path) != ".conflist" {
				line += " " + info.ModTime().String()
			}
		}
		s["file "+path] = line
		return nil
	})
	if err != nil {
		failed("%v", err)
	}
}

// identical ends with an error for each thing that does not come to be as it was: what belonged to a netns goes with it, which
// the kernel does when it has time.
func (n *node) identical(before snapshot) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		d := cmp.Diff(before, n.snapshot())
		return testutil.ErrorIf(d != "", "the node is not as it was (-before +after):\n%s", d)
	})
}
