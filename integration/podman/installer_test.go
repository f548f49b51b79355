//go:build images

package podman

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

const (
	mainList = `{
  "name": "pods",
  "cniVersion": "1.0.0",
  "plugins": [
    {"type": "ptp"}
  ]
}
`
	nodeConfig = `apiVersion: neardns.io/v1alpha1
kind: NodeConfig
clusterDomain: cluster.local
redirects: [10.96.0.10]
localAddresses: [169.254.20.10]
upstreams: {external: []}
`
)

// folders are a node's, as far as the installer goes. On real nodes they often belong to another program than root.
type folders struct {
	t              *testing.T
	bin, conf, etc string
}

const (
	folderOwner = 1001
	fileOwner   = 1002
)

func newFolders(t *testing.T) folders {
	t.Helper()
	testutil.RequireRoot(t)
	dir := t.TempDir()
	// The tests' folders are root's alone; an installer that is not root has to reach them.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		testutil.Must(t, os.Chmod(d, 0o755))
	}
	f := folders{t: t, bin: filepath.Join(dir, "bin"), conf: filepath.Join(dir, "net.d"), etc: filepath.Join(dir, "etc")}
	for _, d := range []string{f.bin, f.conf, f.etc} {
		testutil.Must(t, os.Mkdir(d, 0o755))
	}
	f.write(filepath.Join(f.etc, "nodeconfig.yaml"), nodeConfig, 0o644, 0)
	f.write(f.list(), mainList, 0o640, fileOwner)
	f.own(folderOwner, f.bin, f.conf)
	return f
}

func (f folders) list() string { return filepath.Join(f.conf, "10-pods.conflist") }

func (f folders) own(uid int, paths ...string) {
	f.t.Helper()
	for _, p := range paths {
		testutil.Must(f.t, os.Chown(p, uid, uid))
	}
}

func (f folders) write(path, text string, mode os.FileMode, uid int) {
	f.t.Helper()
	testutil.Must(f.t, os.WriteFile(path, []byte(text), mode))
	f.own(uid, path)
}

func (f folders) installer(verb string, add ...string) container {
	return container{image: pluginImage, add: add, flags: []string{"--security-opt", "no-new-privileges"},
		mounts:  []string{f.bin + ":/host/opt/cni/bin", f.conf + ":/host/etc/cni/net.d", f.etc + ":/etc/neardns:ro"},
		command: []string{verb, "--cni-bin=/host/opt/cni/bin", "--cni-conf=/host/etc/cni/net.d"}}
}

func (f folders) install(add ...string) container {
	c := f.installer("install", add...)
	c.command = append(c.command, "--nodeconfig=/etc/neardns/nodeconfig.yaml")
	return c
}

func (f folders) text() string {
	f.t.Helper()
	text, err := os.ReadFile(f.list())
	testutil.Must(f.t, err)
	return string(text)
}

// installed ends the test unless the node has plugin and entry, and the list kept whom it belongs to.
func (f folders) installed(out string, owner uint32) {
	f.t.Helper()
	if !strings.Contains(f.text(), `"neardns"`) {
		f.t.Fatalf("no entry in the list:\n%s\n%s", f.text(), out)
	}
	info, err := os.Stat(f.list())
	testutil.Must(f.t, err)
	if got := info.Sys().(*syscall.Stat_t); got.Uid != owner || info.Mode().Perm() != 0o640 {
		f.t.Errorf("the list is of uid %d, mode %v", got.Uid, info.Mode())
	}
	if info, err := os.Stat(filepath.Join(f.bin, "neardns")); err != nil || info.Mode().Perm() != 0o755 {
		f.t.Errorf("the plugin: %v, %v", info, err)
	}
}

func TestInstaller(t *testing.T) {
	f, ns := newFolders(t), testutil.NewNS(t, "images")
	code, out := f.install(capabilitiesOf(t, "base/install")...).run(t, ns)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	if !strings.Contains(out, "fallback to kube-dns is not verified yet") {
		t.Errorf("the fallback check's result is not printed:\n%s", out)
	}
	f.installed(out, fileOwner)
	code, out = f.installer("uninstall", capabilitiesOf(t, "uninstall/entry")...).run(t, ns)
	if code != 0 || f.text() != mainList {
		t.Errorf("uninstalled with exit code %d:\n%s\n%s", code, out, f.text())
	}
}

// Each capability of the installer is one that it needs on such a node.
func TestInstallerNeedsEachCapability(t *testing.T) {
	for _, name := range capabilitiesOf(t, "base/install") {
		t.Run(name, func(t *testing.T) {
			f, ns := newFolders(t), testutil.NewNS(t, "images")
			code, out := f.install(without(capabilitiesOf(t, "base/install"), name)...).run(t, ns)
			if code == 0 || !strings.Contains(out, "denied") && !strings.Contains(out, "not permitted") {
				t.Errorf("without it: exit code %d:\n%s", code, out)
			}
			if f.text() != mainList {
				t.Errorf("the list was changed:\n%s", f.text())
			}
		})
	}
}

// The watch does with less, as install/base has it.
func TestWatch(t *testing.T) {
	f, ns := newFolders(t), testutil.NewNS(t, "images")
	c := f.installer("watch", capabilitiesOf(t, "base/watch")...)
	c.name, c.command = "watch", append(c.command, "--nodeconfig=/etc/neardns/nodeconfig.yaml")
	p := c.start(t, ns)
	testutil.Eventually(t, func() error {
		if !strings.Contains(f.text(), `"neardns"`) {
			return errors.New(p.Output())
		}
		return nil
	})
	f.installed(p.Output(), fileOwner)
	if err := p.Terminate(testutil.Patience()); err != nil {
		t.Errorf("told to end: %v\n%s", err, p.Output())
	}
}

// Where the folders are its own, the installer needs neither root nor a capability.
func TestInstallerWithoutRoot(t *testing.T) {
	f, ns := newFolders(t), testutil.NewNS(t, "images")
	f.own(folderOwner, f.list())
	c := f.install()
	c.flags = append(c.flags, "--user", "1001:1001")
	code, out := c.run(t, ns)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	f.installed(out, folderOwner)
}
