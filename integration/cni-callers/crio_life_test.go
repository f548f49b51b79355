package callers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestCRIO takes a node that CRI-O runs through its life.
func TestCRIO(t *testing.T) {
	t.Parallel()
	n := newNode(t, "ptp", "CRI-O's calls, by libcni", release(t, "go.mod", "cni"))
	c := newCRIO(n)
	n.caller = c
	t.Run("validated", func(t *testing.T) { n.during(t, c.testValidated) })
	n.step(t, "pods steered, answered by the cache", n.testPods)
	n.step(t, "agent killed: kube-dns answers, then the cache again", n.testKilled)
	n.step(t, "pods come and go under load", n.testLoad)
	n.step(t, "many pods at once", n.testMany)
	n.step(t, "opt-out by annotation", n.testOptOut)
	n.step(t, "CHECK right after ADD", c.testCheck)
	n.step(t, "DEL after the list has vanished", c.testVanished)
	n.step(t, "GC", c.testGC)
	n.step(t, "STATUS", c.testStatus)
	n.step(t, "list rewritten, watch puts the entry back", n.testRewritten)
	n.limit(t, "entry in a drop-in folder", "the runtime takes a pod down by the list's own file: a plugin from the folder hears of it only by GC", c.testDropIn)
	n.step(t, "node rebooted", c.testReboot)
	n.step(t, "uninstalled under running pods", c.testUninstalled)
}

// A network whose plugin is missing is dropped, so the installer must not name ours before it is there.
func (c *crio) testValidated(t *testing.T) {
	n := c.node
	main, err := os.ReadFile(n.list())
	testutil.Must(t, err)
	early, err := conflist.Append(main, []byte(`{"type":"neardns","redirects":["10.96.0.10"]}`))
	testutil.Must(t, err)
	n.write("net.d/10-main.conflist", string(early))
	_, err = c.network()
	testutil.WantError(t, err, `failed to find plugin "neardns"`, "a list with a plugin that is not there")
	n.write("net.d/10-main.conflist", string(main))
	_, err = c.network()
	testutil.Check(t, err)
}

// CHECK is called at each start of a pod (setUp) and again when CRI-O starts; it must see what is really missing, and must not
// fail for an agent that is away.
func (c *crio) testCheck(t *testing.T) {
	n := c.node
	p := n.mustSetUp("checked")
	p.wantState(podfile.Steered, "")
	n.killAgent()
	testutil.Check(t, c.status(p), "without an agent")
	p.Run("nft", "delete", "table", "inet", "neardns")
	testutil.WantError(t, c.status(p), "neardns", "without the pod's table")
	n.startAgent()
	n.mustTearDown(p)
	n.wantFiles()
}

// The list goes, and with it what CRI-O would look up: the pod is taken down by what it was made with, main network included.
func (c *crio) testVanished(t *testing.T) {
	n := c.node
	p := n.mustSetUp("left")
	text := testutil.ReadFile(t, n.list())
	testutil.Must(t, os.Remove(n.list()))
	if err := c.ready(); err == nil {
		t.Error("a node without a network is ready")
	}
	n.mustTearDown(p)
	n.wantFiles()
	leases, err := filepath.Glob(n.path("ipam/" + n.network + "/1*"))
	if err != nil || len(leases) > 0 {
		t.Errorf("addresses that are still given away: %q, %v", leases, err)
	}
	n.write("net.d/10-main.conflist", text)
}

// CRI-O was away while pods ended: of one it still has the cache, of another not even that. Those that live keep all they have.
func (c *crio) testGC(t *testing.T) {
	n := c.node
	lives, gone, lost := n.mustSetUp("lives"), n.mustSetUp("gone"), n.mustSetUp("lost")
	n.wantFiles(lives.id, gone.id, lost.id)
	for _, p := range []*pod{gone, lost} {
		p.Close()
	}
	testutil.Must(t, n.forget(lost))
	testutil.Must(t, c.gc(lives))
	n.wantFiles(lives.id)
	testutil.Check(t, c.status(lives))
	lives.wantCached("g.cluster.local.")
	testutil.Must(t, c.gc()) // none lives: the list is empty, which is another thing than none given
	n.wantFiles()
}

// A cache that is away makes no node unready.
func (c *crio) testStatus(t *testing.T) {
	n := c.node
	for _, when := range []string{"agent up", "agent killed", "nothing of ours under /run"} {
		switch when {
		case "agent killed":
			n.killAgent()
		case "nothing of ours under /run":
			testutil.Must(t, os.RemoveAll(n.stateDir()))
		}
		testutil.Check(t, c.ready(), when)
	}
	n.startAgent()
}

// ADD and CHECK know a plugin from the folder, DEL by the cache does not: GC makes up for it, at CRI-O's next start.
func (c *crio) testDropIn(t *testing.T) {
	n := c.node
	folder := n.dropIn()
	list, err := c.network()
	if err != nil || len(list.Plugins) != 2 {
		t.Fatalf("the network with its folder: %+v, %v", list, err)
	}
	p := n.mustSetUp("dropped-in")
	p.wantState(podfile.Steered, "")
	p.wantCached("j.cluster.local.")
	n.mustTearDown(p)
	n.wantFiles(p.id) // DEL did not come
	testutil.Must(t, c.gc())
	n.wantFiles()
	testutil.Must(t, os.RemoveAll(folder))
	n.installer("install")
}

// CRI-O's first call after a reboot is GC, by the list that the main network has written before we came.
func (c *crio) testReboot(t *testing.T) {
	n := c.node
	p := n.mustSetUp("old")
	p.Close()
	text := testutil.ReadFile(t, n.list())
	n.writeNetwork()
	testutil.Check(t, c.gc())
	n.write("net.d/10-main.conflist", text)
	if err := os.Remove(podfile.Path(n.stateDir(), p.id, "eth0")); err != nil && !os.IsNotExist(err) { // gone with /run
		t.Fatal(err)
	}
	n.testReboot(t)
}

// The pod is taken down by the configuration that it was made with, which names us; the binary stays for that long.
func (c *crio) testUninstalled(t *testing.T) {
	n := c.node
	p := n.mustSetUp("late")
	remove := []string{made.Path("neardns-install"), "uninstall", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf(), "--cni-cache", n.cache(), "--remove-binary"}
	out, err := n.Host.TryRun("", remove...)
	if err == nil || !strings.Contains(out+err.Error(), "1 pods were made with it") || !strings.Contains(out+err.Error(), "shop/late") {
		t.Errorf("the binary is not held back: %v\n%s", err, out)
	}
	n.installer("install")
	n.testUninstalled(t)
	n.mustTearDown(p)
	n.Host.Run(remove...)
	if _, err := os.Stat(filepath.Join(n.cniBin(), "neardns")); !os.IsNotExist(err) {
		t.Errorf("the binary is still there: %v", err)
	}
}
