package endtoend

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// settled waits until kube-proxy has rules for all pods of the workload's Services: a snapshot is of a node at rest.
func (s *suite) settled() {
	s.t.Helper()
	s.eventually(func() error {
		text, err := s.Run(s.t.Context(), "nft", "list", "ruleset") // knows both kinds
		if err != nil {
			return err
		}
		legacy, err := s.Run(s.t.Context(), "iptables-save")
		if err != nil {
			return err
		}
		for _, p := range s.before {
			for _, a := range p.addrs[:1] {
				if !strings.Contains(text, a.String()+" . tcp . 8080") && !strings.Contains(text, a.String()+" . 8080") && !strings.Contains(legacy, a.String()+":8080") {
					return fmt.Errorf("kube-proxy has no rule for %s", a)
				}
			}
		}
		return nil
	})
}

// pins is where programs pin what they give the kernel (bpf(2)).
const pins = "/sys/fs/bpf"

// snapshot is all of a node that a product might leave traces in, by name: files with owner, mode and content's hash, links,
// addresses, routes, rules of both kinds without counters. What comes and goes with pods is left out.
func (s *suite) snapshot() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, top := range []string{"/etc", "/opt", "/run", "/var/lib", "/var/log", pins} {
		s.must(s.files(out, top))
	}
	for name, args := range map[string][]string{
		"links":      {"ip", "-o", "link"},
		"addresses":  {"ip", "-o", "addr"},
		"routes":     {"ip", "route", "show", "table", "all"},
		"routes 6":   {"ip", "-6", "route", "show", "table", "all"},
		"ip rules":   {"ip", "rule"},
		"ip rules 6": {"ip", "-6", "rule"},
		"nftables":   {"nft", "-s", "list", "ruleset"},
		"iptables":   {"iptables-save"},
		"ip6tables":  {"ip6tables-save"},
		"sysctls":    {"sysctl", "-a", "--pattern", `^net\.`},
	} {
		text, err := s.Run(s.t.Context(), args[0], args[1:]...)
		s.must(err)
		out[name] = stable(text)
	}
	return out
}

// ofPods are the folders and files that the runtime, the kubelet and the network's own plugins change with every pod.
var ofPods = regexp.MustCompile(`^/(run/(containerd|netns|runc|utmp)|var/lib/(containerd|kubelet|cni)|var/log/(containers|pods))(/|$)`)

// ofKubelet is what the kubelet makes for hostPath volumes where it is absent, and leaves, empty: it is gone at reboot.
var ofKubelet = map[string]string{
	"/run/systemd":         "mode 40755, owner 0:0 ",
	"/run/systemd/resolve": "mode 40755, owner 0:0 ",
	"/run/xtables.lock":    "mode 100644, owner 0:0 " + "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
}

// files notes every file below a folder of the node.
func (s *suite) files(out map[string]string, top string) error {
	root := s.Path("/")
	return filepath.WalkDir(s.Path(top), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if ofPods.MatchString(name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		var content string
		switch {
		case strings.HasPrefix(name, pins): // a pin is its name; it cannot be read
		case d.Type() == 0:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(text))
		case d.Type() == fs.ModeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		out[name] = fmt.Sprintf("mode %o, owner %d:%d %s", st.Mode, st.Uid, st.Gid, content)
		return nil
	})
}

// What differs between two looks at a node on which nothing happened but pods.
var (
	counters = regexp.MustCompile(`\[\d+:\d+\]`)
	unstable = regexp.MustCompile(`veth|^# (Generated|Completed)|nf_conntrack_count|file-nr|random`)
)

// stable is a text without them. Lines are sorted: kube-proxy puts its rules in another order each time.
func stable(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !unstable.MatchString(line) {
			lines = append(lines, counters.ReplaceAllString(line, ""))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
