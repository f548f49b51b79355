package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/testutil"
)

// Faults that other CNI installers had. README.md has the list of their numbers, which are in the tests' names. A test's comment names the
// issue that reported the fault.

// istio/istio#27771: after a reboot the list had the entry twice, and the rules were applied twice.
func TestBug01EntryTwice(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"neardns","redirects":["1.1.1.1"]},{"type":"a"},`+testEntry+`,{"type":"b"},`+testEntry+`]}`)
	for range 2 {
		code, out := n.install()
		want(t, code, 0, out, "plugin 3 of 3")
		n.wantTypes("10-a.conflist", "a", "b", "neardns")
	}
}

// istio/istio#32137: a list made from a .conf got another cniVersion, which the main plugin did not support.
func TestBug02VersionAndNameOfAConfAreKept(t *testing.T) {
	n := newNode(t)
	n.network("10-bridge.conf", mainConf)
	code, out := n.install()
	want(t, code, 0, out, "removed "+n.conf+"/10-bridge.conf")
	list, err := libcni.NetworkConfFromFile(filepath.Join(n.conf, "10-bridge.conflist"))
	testutil.Must(t, err)
	if list.Name != "mynet" || list.CNIVersion != "0.4.0" || len(list.Plugins) != 2 || list.Plugins[0].Network.Type != "bridge" {
		t.Errorf("name %q, version %q, %d plugins", list.Name, list.CNIVersion, len(list.Plugins))
	}
	if !strings.Contains(n.read("10-bridge.conflist"), `"mtu":1.50e3`) {
		t.Errorf("the plugin's own text changed:\n%s", n.read("10-bridge.conflist"))
	}
}

// istio/cni#85: the second run lost the main plugin. linkerd/linkerd2#9343: the old .conf stayed next to the new list.
func TestBug03ConfBecomesConflist(t *testing.T) {
	n := newNode(t)
	n.network("10-bridge.conf", mainConf)
	n.network("20-z.conflist", mainList)
	for range 2 {
		code, out := n.install()
		want(t, code, 0, out)
		n.wantTypes("10-bridge.conflist", "bridge", "neardns")
		if d := cmp.Diff([]string{"10-bridge.conflist", "20-z.conflist"}, n.files(n.conf)); d != "" {
			t.Fatalf("files (-want +got):\n%s", d)
		}
	}
	// An earlier run was killed between its two steps, or the network's installer has written a newer .conf: the .conf counts.
	n.network("10-bridge.conf", strings.Replace(mainConf, "1.50e3", "9000", 1))
	code, out := n.install()
	want(t, code, 0, out)
	n.wantTypes("10-bridge.conflist", "bridge", "neardns")
	if !strings.Contains(n.read("10-bridge.conflist"), "9000") || len(n.files(n.conf)) != 2 {
		t.Errorf("the newer .conf was lost: %v\n%s", n.files(n.conf), n.read("10-bridge.conflist"))
	}
	// The uninstallation restores the .conf byte for byte.
	code, out = n.uninstall()
	want(t, code, 0, out, "replaced "+n.conf+"/10-bridge.conflist by the single plugin's file from which it was made: "+n.conf+"/10-bridge.conf")
	if d := cmp.Diff(strings.Replace(mainConf, "1.50e3", "9000", 1), n.read("10-bridge.conf")); d != "" {
		t.Errorf("not as before (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"10-bridge.conf", "20-z.conflist"}, n.files(n.conf)); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	// If the .conf exists already (an earlier run was killed, or its owner restored it), uninstall keeps it and removes the list.
	n.mustInstall()
	n.network("10-bridge.conf", mainConf)
	code, out = n.uninstall()
	want(t, code, 0, out)
	if n.read("10-bridge.conf") != mainConf || len(n.files(n.conf)) != 2 {
		t.Errorf("the owner's file was not kept: %v\n%s", n.files(n.conf), n.read("10-bridge.conf"))
	}
}

// linkerd/linkerd2#4049, istio/cni#82: the installer ran before the network's own and made a network itself.
func TestBug04NoNetworkYet(t *testing.T) {
	n := newNode(t)
	code, out := n.install()
	want(t, code, 1, out, "no network is configured in "+n.conf+" yet")
	code, out = n.install("--wait", "300ms")
	want(t, code, 1, out, "waiting up to 300ms", "no network is configured")
	if files := append(n.files(n.conf), n.files(n.bin)...); len(files) != 0 {
		t.Errorf("files were made: %v", files)
	}

	// The network appears during --wait.
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		n.network("10-a.conflist", mainList)
	}()
	code, out = n.install("--wait", "30s")
	<-arrived
	want(t, code, 0, out)
	n.wantTypes("10-a.conflist", "flannel", "neardns")

	// The installer does not make a missing folder: a runtime would still watch the folder that it has opened.
	other := newNode(t)
	testutil.Must(t, os.Remove(other.conf))
	code, out = other.install()
	want(t, code, 1, out, "no folder "+other.conf)
	if _, err := os.Stat(other.conf); !os.IsNotExist(err) {
		t.Error("the folder was made")
	}
}

// antrea-io/antrea#3974, linkerd/linkerd2#10738: the main network writes its file again without our entry. The next run
// must add the entry again (TestBug14EveryChangeIsARename: in a way that containerd notices).
func TestBug05MainNetworkRewritesItsFile(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	n.mustInstall()
	n.network("10-a.conflist", mainList)
	n.mustInstall()
	n.wantTypes("10-a.conflist", "flannel", "neardns")

	// If nothing is to do, the file is not written: it keeps its inode and its modification time.
	before, err := os.Stat(filepath.Join(n.conf, "10-a.conflist"))
	testutil.Must(t, err)
	code, out := n.install()
	want(t, code, 0, out, "is up to date: network cbr0")
	after, err := os.Stat(filepath.Join(n.conf, "10-a.conflist"))
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("an unchanged list was written")
	}
}

// istio/istio.io#16748, cilium/cilium#22055: the binary was removed first, and pods could not be stopped for days.
func TestBug09UninstallKeepsTheBinary(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	n.mustInstall()
	code, out := n.uninstall()
	want(t, code, 0, out, "--remove-binary")
	if _, err := os.Stat(filepath.Join(n.bin, "neardns")); err != nil {
		t.Error(err)
	}
	// CRI-O stops a pod with the list with which it started the pod, whatever the file has by then. While libcni's cache has such a pod,
	// the binary stays.
	kept := filepath.Join(n.cache(), "results", "cbr0-0123abc-eth0")
	testutil.Must(t, os.MkdirAll(filepath.Dir(kept), 0o700))
	with, err := conflist.Append([]byte(mainList), []byte(testEntry))
	testutil.Must(t, err)
	n.write(kept, cached(t, string(with)), 0o600)
	n.write(kept+"-other", cached(t, mainList), 0o600)
	n.write(kept+"-half", "{", 0o600)
	for range 2 {
		code, out = n.uninstall("--remove-binary")
		want(t, code, 1, out, "1 pods were made with it and cannot stop without it: shop/cart", "--cni-cache")
		if _, err := os.Stat(filepath.Join(n.bin, "neardns")); err != nil {
			t.Error(err)
		}
	}
	testutil.Must(t, os.Remove(kept))
	code, out = n.uninstall("--remove-binary")
	want(t, code, 0, out, "removed "+n.bin+"/neardns")

	// The binary also stays if the entry cannot be removed.
	n.network("10-a.conflist", mainList)
	n.mustInstall()
	n.network("10-a.conflist", `{"name":"n","plugins":[`+testEntry+`]}`)
	code, out = n.uninstall("--remove-binary")
	want(t, code, 1, out, "no plugin but neardns")
	if _, err := os.Stat(filepath.Join(n.bin, "neardns")); err != nil {
		t.Errorf("the binary went before the entry: %v", err)
	}
}

// cached returns the text of a file in libcni's cache, for a pod that was started with list.
func cached(t *testing.T, list string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": "0123abc", "config": []byte(list), "ifName": "eth0", "networkName": "cbr0",
		"cniArgs": [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart"}},
	})
	testutil.Must(t, err)
	return string(text)
}

// projectcalico/calico#8932: half-written binaries. kubeovn/kube-ovn#7035: a file that a power cut truncated was never
// written again. openshift/cluster-network-operator#1472: two installers shared a temporary name.
func TestBug10HalfWrittenFiles(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	n.write(filepath.Join(n.bin, "neardns"), testPlugin[:20], 0o755)
	for _, folder := range []string{n.bin, n.conf} {
		n.write(filepath.Join(folder, tempPrefix+"123"+tempSuffix), "half", 0o600)
	}
	code, out := n.install()
	want(t, code, 0, out, "wrote "+n.bin+"/neardns")
	if got, err := os.ReadFile(filepath.Join(n.bin, "neardns")); err != nil || string(got) != testPlugin {
		t.Errorf("plugin: %v\n%s", err, got)
	}
	if d := cmp.Diff([]string{"neardns", "10-a.conflist"}, append(n.files(n.bin), n.files(n.conf)...)); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	// A wrong mode is repaired, too.
	testutil.Must(t, os.Chmod(filepath.Join(n.bin, "neardns"), 0o600))
	code, out = n.install()
	want(t, code, 0, out, "wrote "+n.bin+"/neardns")

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if code, out := n.install(); code != 0 {
				t.Errorf("beside others: %s", out)
			}
		})
	}
	wg.Wait()
	n.wantTypes("10-a.conflist", "flannel", "neardns")
	if d := cmp.Diff([]string{"neardns", "10-a.conflist"}, append(n.files(n.bin), n.files(n.conf)...)); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
}

// aws/amazon-vpc-cni-k8s#935: the new binary took the old one's place although it could not run.
func TestBug10BrokenBinaryReplacesNothing(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	n.mustInstall()
	before := n.read("10-a.conflist")
	for _, broken := range []string{"\x7fELF not for this machine", "#!/bin/sh\nexit 7\n", "#!/bin/sh\necho '{\"supportedVersions\":[]}'\n", ""} {
		n.write(n.plugin, broken, 0o755)
		code, out := n.install()
		want(t, code, 1, out, "neardns-install-")
		if got, _ := os.ReadFile(filepath.Join(n.bin, "neardns")); string(got) != testPlugin {
			t.Errorf("%q took the plugin's place", broken)
		}
		if n.read("10-a.conflist") != before || len(n.files(n.bin)) != 1 {
			t.Errorf("%q left something: %v", broken, n.files(n.bin))
		}
	}
	// The new plugin runs, but does not support the list's version.
	n.write(n.plugin, "#!/bin/sh\necho '{\"supportedVersions\":[\"1.1.0\"]}'\n", 0o755)
	code, out := n.install()
	want(t, code, 1, out, "cniVersion is 0.3.1, neardns speaks 1.1.0")
	if got, _ := os.ReadFile(filepath.Join(n.bin, "neardns")); string(got) != testPlugin {
		t.Error("it took the plugin's place all the same")
	}
}

// A file that another program is just writing may have only half of its JSON: wait, and never replace a file that does not parse.
func TestBug11PartialRead(t *testing.T) {
	n := newNode(t)
	half := mainList[:40]
	for _, text := range []string{half, "", "null", "[]", mainList + "}"} {
		n.network("10-a.conflist", text)
		n.network("20-b.conflist", mainList) // good, but not the first
		code, out := n.install("--wait", "10ms")
		want(t, code, 1, out, "10-a.conflist: ")
		if n.read("10-a.conflist") != text || n.read("20-b.conflist") != mainList {
			t.Fatalf("%q: something was written", text)
		}
	}
	n.network("10-a.conflist", half)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.network("10-a.conflist", mainList)
	}()
	code, out := n.install("--wait", "30s")
	<-done
	want(t, code, 0, out)
	n.wantTypes("10-a.conflist", "flannel", "neardns")
}

// istio/istio#42485: log lines on standard output broke the plugin's JSON. Such a build is not put in place.
func TestBug13PluginThatLogsToStdout(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", mainList)
	for _, noise := range []string{"echo level=info; ", "echo '{\"level\":\"info\"}'; "} {
		n.write(n.plugin, strings.Replace(testPlugin, "echo ", noise+"echo ", 1), 0o755)
		code, out := n.install()
		want(t, code, 1, out, "does not answer VERSION as a CNI plugin does")
		if len(n.files(n.bin)) != 0 || n.read("10-a.conflist") != mainList {
			t.Error("something was written")
		}
	}
	// A plugin may log to standard error.
	n.write(n.plugin, strings.Replace(testPlugin, "echo ", "echo level=info >&2; echo ", 1), 0o755)
	code, out := n.install()
	want(t, code, 0, out)
}

// The CIS benchmark requires mode 0600, so a replaced file keeps its mode. It keeps its owner too; only root can test that.
func TestBug15ModeAndOwnerAreKept(t *testing.T) {
	for _, name := range []string{"10-a.conflist", "10-a.conf"} {
		n := newNode(t)
		text := mainList
		if filepath.Ext(name) == ".conf" {
			text = mainConf
		}
		file := filepath.Join(n.conf, name)
		n.write(file, text, 0o600)
		uid, gid := os.Geteuid(), os.Getegid()
		if uid == 0 {
			uid, gid = 1234, 2345
			testutil.Must(t, os.Chown(file, uid, gid))
		}
		n.mustInstall()
		info, err := os.Stat(filepath.Join(n.conf, "10-a.conflist"))
		testutil.Must(t, err)
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm() != 0o600 || int(owner.Uid) != uid || int(owner.Gid) != gid {
			t.Errorf("%s: mode %v, owner %d:%d, want 0600, %d:%d", name, info.Mode(), owner.Uid, owner.Gid, uid, gid)
		}
	}
}

// A runtime must not take a temporary file for a network.
func TestTemporaryNamesAreNoNetworks(t *testing.T) {
	dir := t.TempDir()
	name, err := writeTemp(dir, []byte("{"), 0o644, nil)
	testutil.Must(t, err)
	if files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"}); err != nil || len(files) != 0 {
		t.Errorf("%s is taken for a network (%v)", name, err)
	}
	names, err := networks(dir)
	if err != nil || len(names) != 0 {
		t.Errorf("networks: %v, %v", names, err)
	}
}

// An edit changes no foreign key and no number.
func TestForeignKeysAreKept(t *testing.T) {
	n := newNode(t)
	text := `{"cniVersion":"1.1.0","disableCheck":true,"x":{"big":9007199254740993},"name":"n","plugins":[{"zeta":1.10,"type":"a","alpha":null}]}`
	n.network("10-a.conflist", text)
	n.mustInstall()
	var compact bytes.Buffer
	testutil.Must(t, json.Compact(&compact, []byte(n.read("10-a.conflist"))))
	want := strings.Replace(text, `null}]`, `null},`+testEntry+`]`, 1)
	if d := cmp.Diff(want, compact.String()); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	back, err := conflist.Drop([]byte(n.read("10-a.conflist")))
	if err != nil || string(back) != text {
		t.Errorf("not undone: %v\n%s", err, back)
	}
}
