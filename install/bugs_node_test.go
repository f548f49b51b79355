package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// Faults whose cause is something else on the node: the network's own installer, a reboot, SELinux, the runtime, Multus. For the numbers in
// the names see bugs_test.go.

// linkerd/linkerd2#11228: a write in place was not noticed; linkerd/linkerd2#10720: the network's installer began to rename
// its file, which was not noticed. However the file is written, the watch adds the entry again before the next poll.
func TestBug05EveryWayToWriteAFile(t *testing.T) {
	n := newNode(t)
	file, elsewhere := filepath.Join(n.conf, "10-a.conflist"), filepath.Join(n.bin, "..", "new")
	n.network("10-a.conflist", mainList)
	n.watch("--poll", "1h")
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	ways := []struct {
		name string
		do   func(text string) error
	}{
		{"in place", func(text string) error { return os.WriteFile(file, []byte(text), 0o644) }},
		{"renamed within the folder", func(text string) error {
			temp := filepath.Join(n.conf, "new.tmp")
			n.write(temp, text, 0o644)
			return os.Rename(temp, file)
		}},
		{"renamed from another folder", func(text string) error {
			n.write(elsewhere, text, 0o644)
			return os.Rename(elsewhere, file)
		}},
		{"removed and linked", func(text string) error {
			n.write(elsewhere, text, 0o644)
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Link(elsewhere, file)
		}},
		{"removed and made again", func(text string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.WriteFile(file, []byte(text), 0o644)
		}},
	}
	for i, way := range ways {
		main := fmt.Sprintf("main%d", i)
		if err := way.do(strings.Replace(mainList, "flannel", main, 1)); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		n.eventuallyTypes("10-a.conflist", main, "neardns")
	}
}

// istio/istio#57316: an entry that is removed at a shutdown is missing at the next start until it is installed again. istio/istio#14327,
// #55968: the main network writes its file again before our pod runs.
func TestBug06RebootBeforeWeRun(t *testing.T) {
	n := flannelNode(t)
	_, stop := n.watch("--poll", "1h")
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	before := n.read("10-a.conflist")
	if code := stop(); code != 0 { // as the kubelet ends pods at a shutdown
		t.Errorf("exit code %d", code)
	}
	testutil.Equal(t, "list after the shutdown", before, n.read("10-a.conflist"))
	testutil.Equal(t, "what the shutdown left in the plugins' folder", []string{"neardns"}, n.files(n.bin))

	// After the start, nothing is to do if no program wrote the list. If the main network wrote it, install and watch together add one entry.
	n.install(0).has("10-a.conflist is up to date", "neardns is up to date")
	for range 2 {
		n.network("10-a.conflist", mainList)
		out, _ := n.watch("--poll", "1h")
		n.install(0)
		eventuallySays(t, out, "10-a.conflist")
		n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
		testutil.Equal(t, "the list is another than before the reboot", before, n.read("10-a.conflist"))
	}
}

// istio/istio#49538: Cilium in its exclusive mode renames every other network and writes its own file again at each event in
// the folder. The two must not write without pauses, and the log must name the other program.
func TestBug08FightWithAnExclusiveNetwork(t *testing.T) {
	n := newNode(t)
	const name = "05-cilium.conflist"
	list := strings.Replace(release(mainList, 0), "flannel", "cilium-cni", 1)
	n.network("10-other.conflist", mainList)
	cilium, err := fsnotify.NewWatcher()
	testutil.Must(t, err)
	testutil.Must(t, cilium.Add(n.conf))
	writes, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		for range cilium.Events {
			names, err := networks(n.conf)
			if err != nil {
				t.Error(err)
				return
			}
			for _, other := range names {
				if other != name {
					_ = os.Rename(filepath.Join(n.conf, other), filepath.Join(n.conf, other+".cilium_bak"))
				}
			}
			if text, err := os.ReadFile(filepath.Join(n.conf, name)); err != nil || string(text) != list {
				writes++
				testutil.Check(t, n.owner(name, list))
			}
		}
	}()
	testutil.Must(t, n.owner(name, list))
	state := t.TempDir()
	out, stop := n.watch("--poll", "1h", "--state-dir", state)
	eventuallySays(t, out, "network cbr0 was written 4 times in ", "(its first plugin is cilium-cni) must keep other plugins' entries; the next try is in 1s",
		"the next try is in 2s")
	testutil.Must(t, cilium.Close())
	<-ended
	if s, ok, err := nodestate.WatchFile(state).Read(); !ok || err != nil || !s.Fighting || !s.OK || s.Repairs < 4 || s.Network != "cbr0" {
		t.Errorf("the agent reads %+v (%v, %v)", s, ok, err)
	}
	// Cilium no longer does that: the watch adds the entry, which then stays.
	n.eventuallyTypes(name, "cilium-cni", "neardns")
	stop()
	// A pause follows each of our writes except the first four, and Cilium writes once after each of ours.
	ours, rests := strings.Count(out.String(), "wrote "+n.conf), strings.Count(out.String(), "the next try is in ")
	if ours > 4+rests || writes > 1+ours {
		t.Errorf("the list was written %d times by us, with %d rests, and %d times by Cilium:\n%s", ours, rests, writes, out)
	}
	if !slices.Contains(n.files(n.conf), "10-other.conflist.cilium_bak") {
		t.Errorf("Cilium's own doing was undone: %q", n.files(n.conf))
	}
}

// istio/istio#23605, #32360, #53529: SELinux keeps containers from the host's folders, with "permission denied". Here file modes
// cause the same error. The message must name the folder and the remedy, and no network file may be written.
func TestBug12FolderThatMayNotBeWritten(t *testing.T) {
	bin := built(t)
	n := flannelNode(t)
	// Let another user enter the parents of these folders.
	for _, dir := range []string{filepath.Dir(bin), filepath.Dir(filepath.Dir(bin)), filepath.Dir(n.bin), filepath.Dir(filepath.Dir(n.bin))} {
		testutil.Must(t, os.Chmod(dir, 0o755))
	}
	for _, closed := range []string{n.bin, n.conf} {
		open := map[string]string{n.bin: n.conf, n.conf: n.bin}[closed]
		testutil.Must(t, os.Chmod(closed, 0o555))
		testutil.Must(t, os.Chmod(open, 0o777))
		cmd := exec.CommandContext(t.Context(), bin, n.command("install")...)
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 {
			t.Fatalf("%v\n%s", err, out)
		}
		printed{t, string(out)}.has("open "+closed, "permission denied", "spc_t")
		testutil.Equal(t, "the network", mainList, n.read("10-a.conflist"))
		testutil.Equal(t, "files", []string{"10-a.conflist"}, n.files(n.conf))
		testutil.Must(t, os.Chmod(closed, 0o755))
	}
	n.install(0)
}

// containerd/containerd#11715: containerd notices renames and writes, but no new files. So each change of ours is a rename within
// the folder, and never a write to a file that a runtime takes for a network.
func TestBug14EveryChangeIsARename(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conf", mainConf)
	before := n.stat(".")
	for _, step := range []func(int, ...string) printed{n.install, n.uninstall, n.install} {
		watch, err := fsnotify.NewWatcher()
		testutil.Must(t, err)
		testutil.Must(t, watch.Add(n.conf))
		step(0)
		n.write(filepath.Join(n.conf, "marker"), "", 0o644) // all events before this one are the step's
		renamed := false
		for e := range watch.Events {
			if filepath.Base(e.Name) == "marker" {
				break
			}
			renamed = renamed || e.Has(fsnotify.Rename)
			if e.Has(fsnotify.Write) && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name)) {
				t.Errorf("%s was written in place", e.Name)
			}
		}
		if !renamed {
			t.Error("containerd did not take notice of the change")
		}
		testutil.Must(t, watch.Close())
		testutil.Must(t, os.Remove(filepath.Join(n.conf, "marker")))
	}
	if !os.SameFile(before, n.stat(".")) {
		t.Error("the folder is another than the one that the runtime watches")
	}
}

// containerd/containerd#6490: a folder that was removed and made again was not watched any more. Our watch watches it again at once.
func TestBug14FolderMadeAnew(t *testing.T) {
	n := flannelNode(t)
	n.watch("--poll", "1h")
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	for _, main := range []string{"calico", "cilium-cni"} {
		testutil.Must(t, os.RemoveAll(n.conf))
		testutil.Must(t, os.Mkdir(n.conf, 0o755))
		n.network("10-a.conflist", strings.Replace(mainList, "flannel", main, 1))
		n.eventuallyTypes("10-a.conflist", main, "neardns")
	}
	// Later changes in the new folder are noticed, too.
	n.network("05-b.conflist", mainList)
	n.eventuallyTypes("05-b.conflist", "flannel", "neardns")
}

// Multus in its automatic mode makes its own file from the first network that it finds, and again when that network's file changes. So our
// entry belongs into that file. In Multus's own file it would be lost at the next change.
func TestBug16Multus(t *testing.T) {
	n := newNode(t)
	// multus does what the daemon of Multus does: it writes a file with 10-a.conflist as the delegate.
	multus := func() {
		t.Helper()
		list, err := libcni.ConfListFromFile(filepath.Join(n.conf, "10-a.conflist"))
		testutil.Must(t, err)
		n.network("00-multus.conf", fmt.Sprintf(`{"cniVersion":%q,"name":"multus-cni-network","type":"multus","delegates":[%s]}`, list.CNIVersion,
			list.Bytes))
	}
	n.network("10-a.conflist", mainList)
	multus()
	own := n.read("00-multus.conf")
	n.install(1).has("00-multus.conf belongs to Multus", "name that network's file with --file")
	testutil.Equal(t, "Multus's file", own, n.read("00-multus.conf"))
	n.wantUntouched()

	n.install(0, "--file", "10-a.conflist")
	n.wantTypes("10-a.conflist", "flannel", "neardns")
	testutil.Equal(t, "Multus's file", own, n.read("00-multus.conf"))
	multus()
	if text := n.read("00-multus.conf"); strings.Count(text, `"neardns"`) != 1 {
		t.Errorf("the delegate lacks the entry:\n%s", text)
	}
	// If the delegate's file is written again, the watch adds the entry to that file.
	out2, stop := n.watch("--poll", "1h", "--file", "10-a.conflist")
	eventuallySays(t, out2, "10-a.conflist is up to date")
	n.network("10-a.conflist", mainList)
	n.eventuallyTypes("10-a.conflist", "flannel", "neardns")
	stop() // else the watch would add the entry again after uninstall

	n.uninstall(0, "--file", "10-a.conflist")
	multus()
	testutil.Equal(t, "after uninstall", own, n.read("00-multus.conf"))
	// Without --file, uninstall also finds Multus's file, which has our entry until Multus writes it again. The error names that file.
	with, err := conflist.Append([]byte(mainList), []byte(testEntry))
	testutil.Must(t, err)
	n.network("10-a.conflist", string(with))
	multus()
	n.uninstall(1).has("removed neardns from "+n.conf+"/10-a.conflist", "00-multus.conf")
	testutil.Equal(t, "the delegate", mainList, n.read("10-a.conflist"))
}
