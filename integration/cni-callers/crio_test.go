package callers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/neardns/neardns/pkg/testutil"
)

// crio calls libcni as CRI-O 1.36 does, through ocicni 0.5: which calls, in which order, with which arguments, from which text.
// A pod has one network, the default one.
type crio struct {
	node *node
	cni  *libcni.CNIConfig
	conf string
}

func (*crio) id(name, _ string) string { return name + "-0123456789abcdef" }

func newCRIO(n *node) *crio {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}, PluginDecoder: version.PluginDecoder{}}
	return &crio{node: n, cni: libcni.NewCNIConfigWithCacheDir([]string{n.cniBin()}, n.cache(), exec), conf: n.cniConf()}
}

// network is the default one: the first file by name that loads, and whose every plugin is there and speaks its version
// (ValidateNetworkList). A network that does not is dropped with a line in CRI-O's log.
func (c *crio) network() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(c.conf, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	var dropped []error
	for _, file := range files {
		list, err := libcni.NetworkConfFromFile(file)
		if err == nil {
			c.node.Host.Do(func() { _, err = c.cni.ValidateNetworkList(context.Background(), list) })
		}
		if err == nil {
			return list, nil
		}
		dropped = append(dropped, fmt.Errorf("%s: %w", filepath.Base(file), err))
	}
	return nil, fmt.Errorf("no CNI configuration file in %s: %w", c.conf, errors.Join(dropped...))
}

// runtimeConf has no dns capability: CRI-O passes none.
func (c *crio) runtimeConf(p *pod, annotations map[string]string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.id}, {"K8S_POD_UID", "uid-" + p.name},
		},
		CapabilityArgs: object{"io.kubernetes.cri.pod-annotations": annotations},
	}
}

// setUp makes a pod's network: ADD, and at once CHECK, with the text that ADD left in the cache.
func (c *crio) setUp(p *pod, annotations map[string]string) error {
	list, err := c.network()
	if err != nil {
		return err
	}
	rt := c.runtimeConf(p, annotations)
	c.node.Host.Do(func() { _, err = c.cni.AddNetworkList(context.Background(), list, rt) })
	if err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	return c.status(p)
}

// status is what CRI-O calls after ADD and at its own start: CHECK, and then the result from the cache.
func (c *crio) status(p *pod) error {
	list, rt, err := c.cached(p)
	if err != nil {
		return err
	}
	var result types.Result
	c.node.Host.Do(func() {
		if err = c.cni.CheckNetworkList(context.Background(), list, rt); err == nil {
			result, err = c.cni.GetNetworkListCachedResult(list, rt)
		}
	})
	if err != nil {
		return fmt.Errorf("CHECK: %w", err)
	}
	return testutil.ErrorIf(result == nil, "no result in the cache")
}

// cached is the network as it was when the pod was made. Folders of drop-in files are not in it.
func (c *crio) cached(p *pod) (*libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	text, rt, err := c.cni.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: c.node.network}, c.runtimeConf(p, nil))
	if err != nil {
		return nil, nil, fmt.Errorf("read the cache: %w", err)
	}
	if text == nil {
		return nil, nil, errors.New("the pod is not in the cache")
	}
	list, err := libcni.NetworkConfFromBytes(text)
	return list, rt, err
}

// tearDown ends a pod's network by its cached configuration, or where that is gone by the one in the folder.
func (c *crio) tearDown(p *pod) error {
	list, rt, err := c.cached(p)
	if err != nil {
		rt = c.runtimeConf(p, nil)
		if list, err = c.network(); err != nil {
			return err
		}
	}
	c.node.Host.Do(func() { err = c.cni.DelNetworkList(context.Background(), list, rt) })
	if err != nil {
		return fmt.Errorf("DEL: %w", err)
	}
	return nil
}

// gc is what CRI-O 1.32 and later does at its start: libcni sends DEL for each pod of the cache that is not among those that
// live, and then GC with the list of these.
func (c *crio) gc(living ...*pod) error {
	list, err := c.network()
	if err != nil {
		return err
	}
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, p := range living {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.id, IfName: "eth0"})
	}
	c.node.Host.Do(func() { err = c.cni.GCNetworkList(context.Background(), list, args) })
	return err
}

// ready is STATUS, which CRI-O calls every few seconds: an error makes the node not ready.
func (c *crio) ready() error {
	list, err := c.network()
	if err != nil {
		return err
	}
	c.node.Host.Do(func() { err = c.cni.GetStatusNetworkList(context.Background(), list) })
	return err
}
