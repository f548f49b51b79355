package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/libcni"

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
		n.install(0).has("plugin 3 of 3")
		n.wantTypes("10-a.conflist", "a", "b", "neardns")
	}
}

// istio/istio#32137: a list made from a .conf got another cniVersion, which the main plugin did not support.
func TestBug02VersionAndNameOfAConfAreKept(t *testing.T) {
	n := newNode(t)
	n.network("10-bridge.conf", mainConf)
	n.install(0).has("removed " + n.conf + "/10-bridge.conf")
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
		n.install(0)
		n.wantTypes("10-bridge.conflist", "bridge", "neardns")
		testutil.Equal(t, "files", []string{"10-bridge.conflist", "20-z.conflist"}, n.files(n.conf))
	}
	// An earlier run was killed between its two steps, or the network's installer has written a newer .conf: the .conf counts.
	n.network("10-bridge.conf", strings.Replace(mainConf, "1.50e3", "9000", 1))
	n.install(0)
	n.wantTypes("10-bridge.conflist", "bridge", "neardns")
	if !strings.Contains(n.read("10-bridge.conflist"), "9000") || len(n.files(n.conf)) != 2 {
		t.Errorf("the newer .conf was lost: %v\n%s", n.files(n.conf), n.read("10-bridge.conflist"))
	}
	// The uninstallation restores the .conf byte for byte.
	n.uninstall(0).has("replaced " + n.conf + "/10-bridge.conflist by the single plugin's file from which it was made: " +
		n.conf + "/10-bridge.conf")
	testutil.Equal(t, ".conf after uninstall", strings.Replace(mainConf, "1.50e3", "9000", 1), n.read("10-bridge.conf"))
	testutil.Equal(t, "files", []string{"10-bridge.conf", "20-z.conflist"}, n.files(n.conf))
	// If the .conf exists already (an earlier run was killed, or its owner restored it), uninstall keeps it and removes the list.
	n.install(0)
	n.network("10-bridge.conf", mainConf)
	n.uninstall(0)
	if n.read("10-bridge.conf") != mainConf || len(n.files(n.conf)) != 2 {
		t.Errorf("the owner's file was not kept: %v\n%s", n.files(n.conf), n.read("10-bridge.conf"))
	}
}

// linkerd/linkerd2#4049, istio/cni#82: the installer ran before the network's own and made a network itself.
func TestBug04NoNetworkYet(t *testing.T) {
	synctest.Test(t, noNetworkYet)
}

func noNetworkYet(t *testing.T) {
	n := newNode(t)
	n.install(1).has("no network is configured in " + n.conf + " yet")
	n.install(1, "--wait", "300ms").has("waiting up to 300ms", "no network is configured")
	testutil.Equal(t, "files that were made", nil, n.files(n.conf, n.bin))

	n.arrivesWhileWaiting()

	// The installer does not make a missing folder: a runtime would still watch the folder that it has opened.
	other := newNode(t)
	testutil.Must(t, os.Remove(other.conf))
	other.install(1).has("no folder " + other.conf)
	if _, err := os.Stat(other.conf); !os.IsNotExist(err) {
		t.Error("the folder was made")
	}
}

// arrivesWhileWaiting writes the network's file during an installation with --wait, which then succeeds.
func (n *node) arrivesWhileWaiting() {
	n.t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(10 * pollEvery)
		n.network("10-a.conflist", mainList)
	})
	defer wg.Wait()
	n.install(0, "--wait", "30s")
	n.wantTypes("10-a.conflist", "flannel", "neardns")
}

// antrea-io/antrea#3974, linkerd/linkerd2#10738: the main network writes its file again without our entry. The next run
// must add the entry again (TestBug14EveryChangeIsARename: in a way that containerd notices).
func TestBug05MainNetworkRewritesItsFile(t *testing.T) {
	n := flannelNode(t)
	n.install(0)
	n.network("10-a.conflist", mainList)
	n.install(0)
	n.wantTypes("10-a.conflist", "flannel", "neardns")

	// If nothing is to do, the file is not written: it keeps its inode and its modification time.
	before := n.stat("10-a.conflist")
	n.install(0).has("is up to date: network cbr0")
	if after := n.stat("10-a.conflist"); !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("an unchanged list was written")
	}
}

// istio/istio.io#16748, cilium/cilium#22055: the binary was removed first, and pods could not be stopped for days.
func TestBug09UninstallKeepsTheBinary(t *testing.T) {
	n := flannelNode(t)
	n.install(0)
	n.uninstall(0).has("--remove-binary")
	n.installed()
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
		n.uninstall(1, "--remove-binary").has("1 pods were made with it and cannot stop without it: shop/cart", "--cni-cache")
		n.installed()
	}
	testutil.Must(t, os.Remove(kept))
	n.uninstall(0, "--remove-binary").has("removed " + n.bin + "/neardns")

	// The binary also stays if the entry cannot be removed.
	n.network("10-a.conflist", mainList)
	n.install(0)
	n.network("10-a.conflist", `{"name":"n","plugins":[`+testEntry+`]}`)
	n.uninstall(1, "--remove-binary").has("no plugin but neardns")
	n.installed()
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
	n := flannelNode(t)
	n.write(filepath.Join(n.bin, "neardns"), testPlugin[:20], 0o755)
	for _, folder := range []string{n.bin, n.conf} {
		n.write(filepath.Join(folder, tempPrefix+"123"+tempSuffix), "half", 0o600)
	}
	n.install(0).has("wrote " + n.bin + "/neardns")
	testutil.Equal(t, "plugin", testPlugin, n.installed())
	testutil.Equal(t, "files", []string{"neardns", "10-a.conflist"}, n.files(n.bin, n.conf))
	// A wrong mode is repaired, too.
	testutil.Must(t, os.Chmod(filepath.Join(n.bin, "neardns"), 0o600))
	n.install(0).has("wrote " + n.bin + "/neardns")

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var out bytes.Buffer
			if code := run(t.Context(), n.command("install"), &out, &out); code != 0 {
				t.Errorf("next to others: %s", &out)
			}
		})
	}
	wg.Wait()
	n.wantTypes("10-a.conflist", "flannel", "neardns")
	testutil.Equal(t, "files", []string{"neardns", "10-a.conflist"}, n.files(n.bin, n.conf))
}

// aws/amazon-vpc-cni-k8s#935: the new binary took the old one's place although it could not run.
func TestBug10BrokenBinaryReplacesNothing(t *testing.T) {
	n := flannelNode(t)
	n.install(0)
	before := n.read("10-a.conflist")
	for _, broken := range []string{"\x7fELF not for this machine", "#!/bin/sh\nexit 7\n", "#!/bin/sh\necho '{\"supportedVersions\":[]}'\n", ""} {
		n.write(n.plugin, broken, 0o755)
		n.install(1).has("neardns-install-")
		testutil.Equal(t, fmt.Sprintf("the plugin after %q", broken), testPlugin, n.installed())
		if n.read("10-a.conflist") != before || len(n.files(n.bin)) != 1 {
			t.Errorf("%q left something: %v", broken, n.files(n.bin))
		}
	}
	// The new plugin runs, but does not support the list's version.
	n.write(n.plugin, "#!/bin/sh\necho '{\"supportedVersions\":[\"1.1.0\"]}'\n", 0o755)
	n.install(1).has("cniVersion is 0.3.1, neardns speaks 1.1.0")
	testutil.Equal(t, "the plugin", testPlugin, n.installed())
}

// A file that another program is just writing may have only half of its JSON: wait, and never replace a file that does not parse.
func TestBug11PartialRead(t *testing.T) {
	synctest.Test(t, partialRead)
}

func partialRead(t *testing.T) {
	n := newNode(t)
	half := mainList[:40]
	for _, text := range []string{half, "", "null", "[]", mainList + "}"} {
		n.network("10-a.conflist", text)
		n.network("20-b.conflist", mainList) // good, but not the first
		n.install(1, "--wait", "10ms").has("10-a.conflist: ")
		if n.read("10-a.conflist") != text || n.read("20-b.conflist") != mainList {
			t.Fatalf("%q: something was written", text)
		}
	}
	n.network("10-a.conflist", half)
	n.arrivesWhileWaiting()
}

// istio/istio#42485: log lines on standard output broke the plugin's JSON. Such a build is not put in place.
func TestBug13PluginThatLogsToStdout(t *testing.T) {
	n := flannelNode(t)
	for _, noise := range []string{"echo level=info; ", "echo '{\"level\":\"info\"}'; "} {
		n.write(n.plugin, strings.Replace(testPlugin, "echo ", noise+"echo ", 1), 0o755)
		n.install(1).has("does not answer VERSION as a CNI plugin does")
		n.wantUntouched()
	}
	// A plugin may log to standard error.
	n.write(n.plugin, strings.Replace(testPlugin, "echo ", "echo level=info >&2; echo ", 1), 0o755)
	n.install(0)
}

// The CIS benchmark requires mode 0600, so a replaced file keeps its mode. It keeps its owner too; only root can test that.
func TestBug15ModeAndOwnerAreKept(t *testing.T) {
	for name, text := range map[string]string{"10-a.conflist": mainList, "10-a.conf": mainConf} {
		n := newNode(t)
		file := filepath.Join(n.conf, name)
		n.write(file, text, 0o600)
		uid, gid := os.Geteuid(), os.Getegid()
		if uid == 0 {
			uid, gid = 1234, 2345
			testutil.Must(t, os.Chown(file, uid, gid))
		}
		n.install(0)
		info := n.stat("10-a.conflist")
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
	if names, err := networks(dir); err != nil || len(names) != 0 {
		t.Errorf("networks: %v, %v", names, err)
	}
}

// An edit changes no foreign key and no number.
func TestForeignKeysAreKept(t *testing.T) {
	n := newNode(t)
	text := `{"cniVersion":"1.1.0","disableCheck":true,"x":{"big":9007199254740993},"name":"n","plugins":[{"zeta":1.10,"type":"a","alpha":null}]}`
	n.network("10-a.conflist", text)
	n.install(0)
	var compact bytes.Buffer
	testutil.Must(t, json.Compact(&compact, []byte(n.read("10-a.conflist"))))
	testutil.Equal(t, "list", strings.Replace(text, `null}]`, `null},`+testEntry+`]`, 1), compact.String())
	back, err := conflist.Drop([]byte(n.read("10-a.conflist")))
	testutil.Must(t, err)
	testutil.Equal(t, "list without the entry", text, string(back))
}
