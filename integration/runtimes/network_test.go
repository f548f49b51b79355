package runtimes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// awaitNoNetwork waits until the runtime has seen that it has no network, or that its network is not ready.
func (n *node) awaitNoNetwork() {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		s, err := n.Status(n.t.Context(), &runtimeapi.StatusRequest{})
		if err == nil && notReady(s.Status, runtimeapi.NetworkReady) == nil {
			err = errors.New("the runtime has a network still")
		}
		return err
	})
}

// The list goes under a running pod. containerd then takes no pod down, whichever plugins it was made with; it must do so once
// the list is back, and nothing of ours may be left.
func (n *node) testVanished(t *testing.T) {
	p := n.mustRunPod(n.spec("left"))
	list := n.path("net.d/10-main.conflist")
	text := testutil.ReadFile(t, list)
	testutil.Must(t, os.Remove(list))
	n.awaitNoNetwork()
	n.wantCached(p, "v.cluster.local")
	if err := n.removePod(t.Context(), p.sandbox); err == nil {
		t.Error("the runtime took the pod down: say so in the table")
	}
	// As an owner does it; containerd takes no notice of a file that appears under its own name.
	n.write("net.d/new.tmp", text)
	testutil.Must(t, os.Rename(n.path("net.d/new.tmp"), list))
	n.awaitNetwork()
	n.mustRemove(p)
	n.wantNoFiles(t)
}

// STATUS is queried by the runtime, and what it answers is the node's readiness: a cache that is away must not take that.
func (n *node) testStatus(t *testing.T) {
	n.killAgent()
	testutil.Must(t, os.RemoveAll(n.stateDir())) // as before the first agent since the boot
	n.awaitNetwork()
	// The runtime does call STATUS: a plugin that fails it makes the node not ready.
	plugin, aside := filepath.Join(n.cniBin(), "neardns"), filepath.Join(n.cniBin(), "aside")
	testutil.Must(t, os.Rename(plugin, aside))
	n.write("bin/neardns", "#!/bin/sh\n[ \"$CNI_COMMAND\" = STATUS ] || exec "+aside+"\necho '{\"cniVersion\":\"1.1.0\",\"code\":50,\"msg\":\"no\"}'\nexit 1\n")
	testutil.Must(t, os.Chmod(plugin, 0o755))
	n.awaitNoNetwork()
	testutil.Must(t, os.Rename(aside, plugin))
	n.awaitNetwork()
	n.startAgent()
}

// dropIn takes the entry out of the list and puts it next to it, as an operator may do by hand.
func (n *node) dropIn() (folder string) {
	n.t.Helper()
	n.Host.Run(product("neardns-install"), "uninstall", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	folder = n.path("net.d/main")
	testutil.Must(n.t, os.Mkdir(folder, 0o755))
	n.write("net.d/main/90-neardns.conf", n.Host.Run(product("neardns-agent"), "config", "show", "--format", "conflist-entry", "--config", n.path("node.yaml")))
	return folder
}

func (n *node) steered(name string) error {
	p, err := n.runPod(n.t.Context(), n.spec(name))
	if err != nil {
		return err
	}
	defer n.mustRemove(p)
	if _, err := podfile.Read(podfile.Path(n.stateDir(), p.sandbox, "eth0")); err != nil {
		return err
	}
	testutil.Eventually(n.t, func() error { return n.inState(p, podfile.Steered) })
	n.wantCached(p, name+".cluster.local")
	return nil
}

// A drop-in folder is read when the runtime loads the network, which it does at a change in the folder above, not in this one.
func (n *node) testDropIn(t *testing.T) {
	folder := n.dropIn()
	tries := 0
	testutil.Eventually(t, func() error {
		n.write("net.d/reload.tmp", "") // whatever comes and goes there
		if err := os.Remove(n.path("net.d/reload.tmp")); err != nil {
			return err
		}
		tries++
		return n.steered(fmt.Sprintf("dropped-in-%d", tries))
	})
	n.wantNoFiles(t) // DEL came too
	testutil.Must(t, os.RemoveAll(folder))
	n.install()
	testutil.Eventually(t, func() error { tries++; return n.steered(fmt.Sprintf("listed-%d", tries)) })
}

// An older runtime passes over the folder, also at its start.
func (n *node) testNoDropIn(t *testing.T) {
	folder := n.dropIn()
	n.stop()
	n.launch()
	n.awaitNetwork()
	if err := n.steered("not-dropped-in"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the runtime read the folder (%v): say so in the table", err)
	}
	testutil.Must(t, os.RemoveAll(folder))
	tries := 0
	n.install()
	testutil.Eventually(t, func() error { tries++; return n.steered(fmt.Sprintf("listed-%d", tries)) })
}
