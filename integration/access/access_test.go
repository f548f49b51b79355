package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

const (
	install = "../../install"
	page    = "../../docs/reference/node-access.md"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "attempt" {
		if err := try(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// secret is a file of a node that others than neardns live by.
type secret struct{ what, path string }

var secrets = []secret{
	{"a pod's token or secret", "/var/lib/kubelet/pods/1234/volumes/kubernetes.io~projected/kube-api-access/token"},
	{"the kubelet's own key", "/var/lib/kubelet/pki/kubelet-client-current.pem"},
	{"the control plane's keys", "/etc/kubernetes/pki/ca.key"},
	{"administrators' credentials", "/etc/kubernetes/admin.conf"},
	{"password hashes", "/etc/shadow"},
	{"the host's SSH key", "/etc/ssh/ssh_host_ed25519_key"},
	{"other CNI plugins' credentials", "/etc/cni/net.d/calico-kubeconfig"},
	{"etcd's data", "/var/lib/etcd/member/snap/db"},
	{"the runtime's socket", "/run/containerd/containerd.sock"},
}

// openToAll are secrets that their own mode does not protect: the folder above them does, from those who are not root.
var openToAll = []string{secrets[0].path}

// node makes the files of a node.
func node(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	put := func(path string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(root, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(path), 0o600))
		if err = errors.Join(err, os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range secrets {
		mode := os.FileMode(0o600)
		if slices.Contains(openToAll, s.path) {
			mode = 0o644
		}
		put(s.path, mode)
	}
	testutil.Must(t, os.Chmod(filepath.Join(root, "/var/lib/kubelet/pods"), 0o750))
	for _, path := range []string{"/etc/hostname", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/cni/net.d/10-main.conflist", "/opt/cni/bin/ptp",
		"/var/lib/kubelet/config.yaml", "/run/systemd/resolve/resolv.conf", "/run/netns/cni-1", "/run/neardns/host-rules", "/var/lib/neardns/fallback-proven",
		"/run/xtables.lock", "/var/lib/cni/results/cni0-1", "/run/dbus/system_bus_socket", "/sys/fs/bpf/neardns/build"} {
		put(path, 0o644)
	}
	for _, path := range []string{"/opt/cni/bin", "/opt/cni/bin/ptp"} { // as the reference plugins unpack
		testutil.Must(t, os.Chown(filepath.Join(root, path), 1001, 1001))
	}
	return root
}

// reached tries what one container can.
func reached(t *testing.T, c confined) reach {
	t.Helper()
	a := attempt{Container: c, Node: node(t), Pod: t.TempDir(), Root: t.TempDir()}
	for _, m := range c.Mounts {
		testutil.Must(t, os.MkdirAll(filepath.Join(a.Pod, m.Name), 0o777))
	}
	in, err := json.Marshal(a)
	testutil.Must(t, err)
	self, err := os.Executable()
	testutil.Must(t, err)
	cmd := exec.CommandContext(t.Context(), self, "attempt")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	var r reach
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", c, err, said.String())
	}
	testutil.Must(t, json.Unmarshal(out.Bytes(), &r))
	return r
}

// TestContainersReadNoSecrets runs as each container of install/base, install/hosts and install/uninstall and opens all that it sees. The
// containers of base and the last one of uninstall read none of the node's secrets, but for other CNI plugins' credentials in the folder
// that the installer and the watch write. The result is a table in docs/reference/node-access.md.
func TestContainersReadNoSecrets(t *testing.T) {
	testutil.RequireRoot(t)
	var all []confined
	for _, set := range []string{"base", "hosts", "uninstall"} {
		list, err := containers(install, set)
		testutil.Must(t, err)
		all = append(all, list...)
	}
	results := map[string]reach{}
	for _, c := range all {
		results[c.String()] = reached(t, c)
	}

	// The two that may read what is not their own are the installer and the watch, in the folder that they write.
	for _, name := range []string{"base/install", "base/agent", "base/watch", "base/copy", "uninstall/done"} {
		r, ok := results[name]
		if !ok {
			t.Errorf("there is no container %s", name)
		}
		for _, s := range secrets {
			theirs := (name == "base/watch" || name == "base/install") && strings.HasPrefix(s.path, "/etc/cni/net.d/")
			if slices.Contains(r.Reads, s.path) && !theirs {
				t.Errorf("%s reads %s: %s", name, s.what, s.path)
			}
		}
	}
	if r := results["uninstall/done"]; len(r.Reads)+len(r.Writes) > 0 {
		t.Errorf("uninstall's last container reaches %v", r)
	}
	if r := results["base/install"]; !slices.Contains(r.Reads, "/var/lib/kubelet/config.yaml") {
		t.Errorf("the installer does not see what it has mounted: %v", r)
	}
	// That the trial can fail: what takes neardns off a node sees /var/lib.
	if r := results["uninstall/cleanup"]; !slices.Contains(r.Reads, secrets[0].path) {
		t.Errorf("the cleanup does not see what it has mounted: %v", r)
	}
	if r := results["base/agent"]; !slices.Contains(r.Writes, "/run/neardns") || !slices.Contains(r.Writes, "/var/lib/neardns") || !slices.Contains(r.Reads, "/run/netns/cni-1") {
		t.Errorf("the agent does not reach its own: %v", r)
	}
	if r := results["base/watch"]; !slices.Contains(r.Writes, "/opt/cni/bin") || !slices.Contains(r.Writes, "/etc/cni/net.d/10-main.conflist") || !slices.Contains(r.Writes, "/run/neardns") {
		t.Errorf("the watch does not reach its own: %v", r)
	}
	if r := results["base/copy"]; !slices.Contains(r.Reads, "/etc/resolv.conf") || !slices.Contains(r.Reads, "/etc/ssl/certs/ca-certificates.crt") || len(r.Writes) > 0 {
		t.Errorf("copy reaches %v", r)
	}
	golden.Part(t, page, "tried", render(all, results))
}

// render draws the tables.
func render(all []confined, results map[string]reach) string {
	var b strings.Builder
	b.WriteString("| container | as | reads below, of the host's | and writes |\n| --- | --- | --- | --- |\n")
	for _, c := range all {
		as := "nobody (65532)"
		if c.User == 0 {
			as = "root"
		}
		for _, name := range c.Capabilities {
			as += ", `" + string(name) + "`"
		}
		var reads, writes []string
		for _, m := range c.Mounts {
			if m.Host == "" {
				continue
			}
			below := func(path string) bool { return path == m.Host || strings.HasPrefix(path, m.Host+"/") }
			if slices.ContainsFunc(results[c.String()].Reads, below) {
				reads = append(reads, "`"+m.Host+"`")
			}
			if slices.ContainsFunc(results[c.String()].Writes, below) {
				writes = append(writes, "`"+m.Host+"`")
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c, as, list(reads), list(writes))
	}
	b.WriteString("\n|  |")
	for _, c := range all {
		b.WriteString(" " + c.String() + " |")
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(all)) + "\n")
	for _, s := range secrets {
		fmt.Fprintf(&b, "| %s |", s.what)
		for _, c := range all {
			word := "no"
			if slices.Contains(results[c.String()].Reads, s.path) {
				word = "**reads**"
			}
			b.WriteString(" " + word + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func list(paths []string) string {
	slices.Sort(paths)
	if paths = slices.Compact(paths); len(paths) == 0 {
		return "nothing"
	}
	return strings.Join(paths, ", ")
}
