package edge_test

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// disk mounts a small file system of its own at a folder.
func disk(t *testing.T, at string) {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("no loop devices here: %v", err)
	}
	image := filepath.Join(t.TempDir(), "disk")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
		}
	}
	run("truncate", "-s", "16M", image)
	run("mkfs.ext4", "-q", image)
	run("mkdir", at)
	run("mount", "-o", "loop", image, at)
	t.Cleanup(func() { run("umount", at) })
}

// freeze has each write to the file system at a folder wait until thaw, or the end of this process, whatever ends it: a process that waits
// for the disk cannot even be killed.
func freeze(t *testing.T, at string) (thaw func()) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "sh", "-c", `fsfreeze -f "$0" && echo frozen && read -r _; fsfreeze -u "$0"`, at)
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	thaw = sync.OnceFunc(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("thaw the disk: %v", err)
		}
	})
	t.Cleanup(thaw)
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("freeze the disk: %q, %v", said, err)
	}
	return thaw
}

// TestDiskStalls: each write to the disk of an edge's zones hangs. The edge answers on and follows the primary; what it has is on the disk
// when that goes on.
func TestDiskStalls(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32")
	p := primary(t, ns, zoneserver.BIND)
	e := configure(t, ns, edgeAt, p, "rate: {answers: 0}\n")
	state := filepath.Join(e.folder, "state")
	disk(t, state)
	e.run()
	add := func(host string) {
		t.Helper()
		publish(t, p, publication{host: host, cluster: "cluster01", strategy: "loadbalanced", addresses: []string{"203.0.113.1"}})
		e.await(host+"."+p.Zone(), "203.0.113.1")
	}
	add("before")
	testutil.Eventually(t, func() error { return e.saved(p.Zone(), "before.") })

	thaw := freeze(t, state)
	add("during")
	e.steady("during."+p.Zone(), 3000)
	add("later")
	if code, text := e.get("9253/metrics"); code != http.StatusOK || !strings.Contains(text, "neardns_edge_zone_age_seconds") {
		t.Errorf("metrics: %d %s", code, text)
	}
	if code, text := e.get("9254/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, text)
	}
	if e.saved(p.Zone(), "during.") == nil || e.saved(p.Zone(), "later.") == nil {
		t.Error("the disk did not stall")
	}
	thaw()

	testutil.Eventually(t, func() error { return e.saved(p.Zone(), "later.") })
	p.Kill()
	e.Kill()
	e.run() // without the primary
	for _, host := range []string{"before", "during", "later"} {
		testutil.Check(t, e.answers(host+"."+p.Zone(), "203.0.113.1"), "after a restart")
	}
}
