package podfile

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

var cmpAddr = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func sample(id, ifName string) File {
	r := steer.Redirect{ClusterDNS: netip.MustParseAddr("10.96.0.10"), Steering: netip.MustParseAddr("169.254.20.11")}
	r6 := steer.Redirect{ClusterDNS: netip.MustParseAddr("fd00::a"), Steering: netip.MustParseAddr("fd00:90de:d95::b")}
	return File{
		Version: version, ContainerID: id, IfName: ifName, Network: "pods", NetNS: "/run/netns/x", NetNSInode: 4026532000,
		PodName: "web-0", PodNamespace: "shop", PodUID: "7c1f", HostInterface: "veth12",
		Addresses:   []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd01::5")},
		Nameservers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local"}, Options: []string{"ndots:5"},
		Decisions: []Decision{{Redirect: r, State: Steered}, {Redirect: r6, State: LeftAlone, Reason: "no route"}},
	}
}

func TestWriteReadRemove(t *testing.T) {
	dir := t.TempDir()
	want := sample("abc-1", "eth0")
	testutil.Must(t, Write(dir, want))
	path := Path(dir, "abc-1", "eth0")
	if filepath.Base(path) != "abc-1-eth0.json" {
		t.Errorf("file name %s", path)
	}
	got, err := Read(path)
	testutil.Must(t, err)
	if d := cmp.Diff(want, got, cmpAddr); d != "" {
		t.Errorf("read differs from written (-want +got):\n%s", d)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: search lists and pod names are nobody else's business", st.Mode())
	}
	for range 2 {
		testutil.Must(t, Remove(dir, "abc-1", "eth0"))
	}
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after remove: %v", err)
	}
}

// A dash separates container ID and interface name. Names that contain dashes must still give different files.
func TestNamesDoNotCollide(t *testing.T) {
	dir := t.TempDir()
	keys := []Key{{"a", "b-c"}, {"a-b", "c"}, {"a", "b%2Dc"}, {"a-b-c", "eth0"}}
	for _, k := range keys {
		testutil.Must(t, Write(dir, sample(k.ContainerID, k.IfName)))
	}
	files, errs := List(dir)
	if len(files) != len(keys) || errs != nil {
		t.Fatalf("%d files, errors %v", len(files), errs)
	}
	got, err := Keys(dir)
	testutil.Must(t, err)
	less := cmpopts.SortSlices(func(a, b Key) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
	if d := cmp.Diff(keys, got, less); d != "" {
		t.Error(d)
	}
}

func TestCheckKeyRefusesWhatCouldLeaveTheFolder(t *testing.T) {
	for _, k := range []Key{
		{"", "eth0"}, {"..", "eth0"}, {"../x", "eth0"}, {"a/b", "eth0"}, {".a", "eth0"}, {"a\x00", "eth0"}, {"ä", "eth0"},
		{strings.Repeat("a", 161), "eth0"}, {"a", ""}, {"a", "."}, {"a", ".."}, {"a", "../x"}, {"a", "a/b"}, {"a", "e th"},
		{"a", "sixteen-letters."}, {"a", "eth0\n"},
	} {
		if err := CheckKey(k.ContainerID, k.IfName); err == nil {
			t.Errorf("CheckKey(%q, %q) = nil", k.ContainerID, k.IfName)
		}
		if err := Remove(t.TempDir(), k.ContainerID, k.IfName); err == nil {
			t.Errorf("Remove(%q, %q) = nil", k.ContainerID, k.IfName)
		}
		if err := Write(t.TempDir(), File{ContainerID: k.ContainerID, IfName: k.IfName}); err == nil {
			t.Errorf("Write(%q, %q) = nil", k.ContainerID, k.IfName)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, Write(dir, sample("ok", "eth0")))
	good, err := os.ReadFile(Path(dir, "ok", "eth0"))
	testutil.Must(t, err)
	for name, tc := range map[string]struct{ file, data, want string }{
		"empty":         {"a-eth0.json", "", "not valid JSON"},
		"cut off":       {"ok-eth0.json", string(good[:len(good)/2]), "not valid JSON"},
		"two values":    {"ok-eth0.json", string(good) + "{}", "after top-level value"},
		"no version":    {"a-eth0.json", `{"containerID":"a","ifName":"eth0"}`, "no format version"},
		"newer":         {"a-eth0.json", `{"version":2,"containerID":"a","ifName":"eth0"}`, "newer neardns"},
		"another's":     {"b-eth0.json", `{"version":1,"containerID":"a","ifName":"eth0"}`, "belong to a-eth0.json"},
		"leaves folder": {"a-eth0.json", `{"version":1,"containerID":"../a","ifName":"eth0"}`, "not allowed"},
		"unknown state": {"a-eth0.json", `{"version":1,"containerID":"a","ifName":"eth0","decisions":[{"state":"maybe"}]}`, "unknown state"},
		"wrong type":    {"a-eth0.json", `{"version":1,"containerID":7}`, "not valid JSON"},
		"huge":          {"a-eth0.json", strings.Repeat(" ", nodestate.MaxSize+1), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), tc.file)
			testutil.Must(t, os.WriteFile(path, []byte(tc.data), 0o600))
			_, err := Read(path)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v: want %q and the path", err, tc.want)
			}
		})
	}
}

func TestListGoesOnPastABadFile(t *testing.T) {
	dir := t.TempDir()
	if files, errs := List(dir); files != nil || errs != nil {
		t.Fatalf("no folder: %v, %v", files, errs)
	}
	for _, id := range []string{"a", "b"} {
		testutil.Must(t, Write(dir, sample(id, "eth0")))
	}
	for _, name := range []string{"bad-eth0.json", "README", ".hidden.json"} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, "pods", name), []byte("{"), 0o600))
	}
	files, errs := List(dir)
	if len(files) != 2 || len(errs) != 1 || !strings.Contains(errs[0].Error(), "bad-eth0.json") {
		t.Errorf("files %d, errors %v", len(files), errs)
	}
}

func TestSiblings(t *testing.T) {
	dir := t.TempDir()
	for _, k := range []Key{{"a", "eth0"}, {"a", "net1"}, {"b", "eth0"}, {"a-net1", "eth0"}} {
		testutil.Must(t, Write(dir, sample(k.ContainerID, k.IfName)))
	}
	got, errs := Siblings(dir, "a", "eth0")
	if len(errs) != 0 || len(got) != 1 || got[0].IfName != "net1" {
		t.Errorf("siblings %v, errors %v", got, errs)
	}
}

func TestTableIsTheSameFromEachSide(t *testing.T) {
	eth0, net1 := sample("a", "eth0"), sample("a", "net1")
	eth0.Decisions[1].State = Steered
	net1.Decisions[0].Redirect.Steering = netip.MustParseAddr("169.254.20.99") // another steering address than eth0 has
	net1.Decisions = append(net1.Decisions, Decision{State: Steered, Redirect: steer.Redirect{
		ClusterDNS: netip.MustParseAddr("10.96.0.9"), Steering: netip.MustParseAddr("169.254.20.12"),
	}})
	got := Table(net1, eth0)
	if d := cmp.Diff(Table(eth0, net1), got, cmpAddr); d != "" {
		t.Error(d)
	}
	want := steer.Pod{Redirects: []steer.Redirect{net1.Decisions[2].Redirect, eth0.Decisions[0].Redirect, eth0.Decisions[1].Redirect}}
	if d := cmp.Diff(want, got, cmpAddr); d != "" {
		t.Error(d)
	}
	if got := Table(); len(got.Redirects) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestUpdateDoesNotBringBack(t *testing.T) {
	dir := t.TempDir()
	f := sample("a", "eth0")
	if err := Update(dir, f); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("update of nothing: %v", err)
	}
	testutil.Must(t, Write(dir, f))
	f.Decisions[1].State = Steered
	testutil.Must(t, Update(dir, f))
	got, err := Read(Path(dir, "a", "eth0"))
	if err != nil || len(got.In(Steered)) != 2 {
		t.Errorf("after update: %v, %v", got.Decisions, err)
	}
	testutil.Must(t, Remove(dir, "a", "eth0"))
	if err := Update(dir, f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("update after remove: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "pods")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, Write(dir, sample("a", "eth0")))
	at := func(name string) string { return filepath.Join(dir, "pods", nodestate.TempPrefix+name) }
	for name, written := range map[string]time.Time{"old": time.Unix(1, 0), "fresh": {}, "ahead": time.Unix(1<<33, 0)} { // zero: unchanged
		testutil.Must(t, os.WriteFile(at(name), nil, 0o600))
		testutil.Must(t, os.Chtimes(at(name), written, written))
	}
	testutil.Must(t, Sweep(dir, 1000*time.Hour))
	for _, name := range []string{"old", "ahead"} { // ahead: as if the clock was set back after it was written
		if _, err := os.Stat(at(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the %s one stays", name)
		}
	}
	if _, err := os.Stat(at("fresh")); err != nil {
		t.Error("the fresh one went")
	}
}

func TestOpenNetNS(t *testing.T) {
	ns, inode, err := OpenNetNS("/proc/self/ns/net")
	testutil.Must(t, err)
	ns.Close()
	f := File{NetNS: "/proc/self/ns/net", NetNSInode: inode}
	if ns, err = f.OpenNetNS(); err != nil {
		t.Fatal(err)
	}
	ns.Close()
	f.NetNSInode++
	if _, err = f.OpenNetNS(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another netns under the same path: %v", err)
	}
	regular := filepath.Join(t.TempDir(), "x")
	testutil.Must(t, os.WriteFile(regular, nil, 0o600))
	if _, _, err := OpenNetNS(regular); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a regular file: %v", err)
	}
	if _, _, err := OpenNetNS(regular + "-none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	if seed, err := encode(sample("abc", "eth0")); err == nil {
		f.Add(seed)
	}
	f.Add([]byte(`{"version":1,"containerID":"a","ifName":"b-c","decisions":[{"redirect":{"clusterDNS":""},"state":"pending"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := decode(data)
		if err != nil {
			return
		}
		// A file that decode accepts can be written, and Read finds it with the same contents.
		dir := t.TempDir()
		if err := Write(dir, file); err != nil {
			t.Fatalf("write what was read: %v", err)
		}
		again, err := Read(Path(dir, file.ContainerID, file.IfName))
		testutil.Must(t, err)
		file.Version = version
		if d := cmp.Diff(file, again, cmpAddr, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

// Concurrent calls of Amend for one file lose no change.
func TestAmend(t *testing.T) {
	dir := t.TempDir()
	if err := Amend(dir, "abc", "eth0", func(*File) bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	testutil.Must(t, Write(dir, sample("abc", "eth0")))
	if err := Amend(dir, "other", "eth0", func(*File) bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	testutil.Check(t, Amend(dir, "abc", "eth0", func(f *File) bool { f.PodName = "x"; return false }))
	const each = 50
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				err := Amend(dir, "abc", "eth0", func(f *File) bool {
					f.Ignored = append(f.Ignored, Ignored{What: "x"})
					return true
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := Read(Path(dir, "abc", "eth0"))
	if err != nil || len(got.Ignored) != 4*each || got.PodName != "web-0" {
		t.Errorf("%d of %d changes, pod %s, %v", len(got.Ignored), 4*each, got.PodName, err)
	}
}
