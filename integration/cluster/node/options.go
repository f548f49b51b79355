package node

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/neardns/neardns/integration/containerd"
)

// Options say which cluster it is.
type Options struct {
	Bin     string // the repository's folder of that name: products and tools
	Proxy   string // kube-proxy's mode: iptables or nftables
	Runtime string // containerd16 or containerd2
	Slim    bool   // the agent's image is the one without iptables
	Workers int    // nodes next to the first
	// BackOff bounds the kubelet's pause before it starts a container again that ended (in whole seconds); 0: Kubernetes' own five minutes.
	BackOff time.Duration
	// Attached ends the node with this process, whatever ends it: for tests.
	Attached bool
}

// most is how many nodes a cluster can have: one machine carries them all.
const most = 5

// Build is one build of the products: the repository's folder, with the programs in its bin, and the tag that its images have here.
type Build struct{ Root, Tag string }

// Own is the build that the node was started for; its images are on the node from the start.
func (o Options) Own() Build { return Build{filepath.Dir(o.Bin), ownTag} }

// ownTag is the images' tag in the manifests.
const ownTag = "dev"

// Check reports what is wrong with them, and which program is missing.
func (o Options) Check() error {
	if o.Proxy != "iptables" && o.Proxy != "nftables" {
		return fmt.Errorf("kube-proxy has no mode %q: iptables or nftables", o.Proxy)
	}
	if o.Workers < 0 || o.Workers > most-1 {
		return fmt.Errorf("%d nodes: 1 to %d", o.Workers+1, most)
	}
	if _, err := containerd.Find(o.Bin, o.Runtime); err != nil {
		return err
	}
	if _, err := o.kubernetes(); err != nil {
		return err
	}
	for _, name := range []string{"neardns", "neardns-agent", "neardns-install", "tools/cluster", "tools/coredns", "tools/podimage", "tools/bridge", "tools/host-local", "tools/loopback", "tools/portmap"} {
		if _, err := os.Stat(filepath.Join(o.Bin, name)); err != nil {
			return fmt.Errorf("no %s: `make cluster` builds it", filepath.Join(o.Bin, name))
		}
	}
	return nil
}

// kubernetes is the folder of Kubernetes' programs, relative to Bin.
func (o Options) kubernetes() (string, error) {
	found, err := filepath.Glob(filepath.Join(o.Bin, "tools/k8s-v*"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no Kubernetes in %s: `make cluster` builds it", filepath.Join(o.Bin, "tools"))
	}
	return filepath.Rel(o.Bin, found[len(found)-1])
}
