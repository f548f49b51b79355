package programs

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/netip"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/testutil"
)

// ContainerID is the id by which Add names the container of a pod.
func ContainerID(pod string) string { return pod + "-0123456789abcdef" }

// Add has libcni call the plugin neardns, which is in the folder bin, for a pod that the topology has attached, in the host's netns, with
// the result that the plugin which attached it would have given. name is the pod's, in the namespace default; entry has the plugin's
// further keys; cache is libcni's folder.
func Add(bin string, host *testutil.NetNS, pod *testutil.Pod, name, cache string, entry map[string]any) error {
	var ips []any
	for _, a := range pod.Addrs {
		ips = append(ips, map[string]any{"address": netip.PrefixFrom(a, a.BitLen()).String(), "interface": 0})
	}
	conf := map[string]any{"cniVersion": "1.0.0", "name": "pods", "type": "neardns", "prevResult": map[string]any{
		"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": pod.Path()}}, "ips": ips,
	}}
	maps.Copy(conf, entry)
	bytes, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	c := libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	network := &libcni.NetworkConfig{Network: &types.NetConf{CNIVersion: "1.0.0", Name: "pods", Type: "neardns"}, Bytes: bytes}
	host.Do(func() {
		_, err = c.AddNetwork(context.Background(), network, &libcni.RuntimeConf{ContainerID: ContainerID(name), NetNS: pod.Path(), IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}}})
	})
	return err
}
