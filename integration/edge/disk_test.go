package edge_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// freeze has each write to the file system at a folder wait for some time: it goes on by itself, whatever becomes of the test. A process that
// waits for the disk cannot even be killed.
func freeze(t *testing.T, at string, during time.Duration) (frozen func() bool) {
	t.Helper()
	p := testutil.StartHere(t, exec.CommandContext(context.Background(), "sh", "-c",
		fmt.Sprintf("fsfreeze -f '%[1]s' && echo frozen && sleep %[2]d; fsfreeze -u '%[1]s'; echo thawed", at, int(during/time.Second))))
	t.Cleanup(func() { _ = exec.CommandContext(context.Background(), "fsfreeze", "-u", at).Run() })
	testutil.Eventually(t, 5*time.Second, func() error {
		if out := p.Output(); !strings.HasPrefix(out, "frozen") {
			return fmt.Errorf("not frozen: %s", out)
		}
		return nil
	})
	return func() bool { return !strings.Contains(p.Output(), "thawed") }
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
		testutil.Eventually(t, 5*time.Second, func() error {
			got, err := e.addresses(host + "." + p.Zone())
			if err == nil && !slices.Equal(got, []string{"203.0.113.1"}) {
				err = fmt.Errorf("%s: %v", host, got)
			}
			return err
		})
	}
	saved := func(host string) bool {
		text, err := os.ReadFile(filepath.Join(state, strings.TrimSuffix(p.Zone(), ".")+".zone"))
		return err == nil && strings.Contains(string(text), "\n"+host+".")
	}
	until := func(host string) {
		t.Helper()
		testutil.Eventually(t, 10*time.Second, func() error {
			if !saved(host) {
				return fmt.Errorf("%s is not on the disk", host)
			}
			return nil
		})
	}
	add("before")
	until("before")

	frozen := freeze(t, state, 12*time.Second)
	add("during")
	n := e.steady("during."+p.Zone(), 3*time.Second)
	add("later")
	if code, text := e.get("9253/metrics"); code != http.StatusOK || !strings.Contains(text, "neardns_edge_zone_age_seconds") {
		t.Errorf("metrics: %d %s", code, text)
	}
	if code, text := e.get("9254/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, text)
	}
	if saved("during") || saved("later") || !frozen() {
		t.Error("the disk did not stall for as long as the test takes")
	}
	t.Logf("%d questions while the disk stalls, all answered", n)

	until("later")
	p.Kill()
	e.Kill()
	e.run() // without the primary
	for _, host := range []string{"before", "during", "later"} {
		if got, err := e.addresses(host + "." + p.Zone()); err != nil || len(got) != 1 {
			t.Errorf("after a restart %s is %v, %v", host, got, err)
		}
	}
}
