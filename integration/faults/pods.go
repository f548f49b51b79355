package main

import (
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/neardns/neardns/pkg/testutil"
)

// second is another Service of kube-dns's, for reloads that add and take out a redirect.
func second(s *stand) []testutil.Service {
	services := testutil.DNSService(secondDNS, s.node.KubeDNSAddrs()[0])
	for i := range services {
		services[i].Name = "kube-dns-second"
	}
	return services
}

// addPod has libcni make a pod by a conflist, with an entry behind the reference ptp plugin where one is given.
func addPod(s *stand, name string, entries ...map[string]any) *testutil.Pod {
	s.t.Helper()
	p := s.node.AddPod(name)
	gateway := s.node.Gateways()[0]
	plugins := []any{map[string]any{"type": "ptp", "ipam": map[string]any{
		"type": "host-local", "dataDir": s.path("ipam"), "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		"ranges": []any{[]any{map[string]any{"subnet": s.node.PodRange(true).String(), "gateway": gateway}}},
	}}}
	for _, e := range entries {
		plugins = append(plugins, e)
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
	s.must(err)
	s.write("10-pods.conflist", string(text))
	list, err := libcni.ConfListFromFile(s.path("10-pods.conflist"))
	s.must(err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{s.bin(""), s.bin("tools")}, s.path("cni-cache"), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	conf := &libcni.RuntimeConf{
		ContainerID: name, NetNS: p.Path(), IfName: "eth0",
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
		CapabilityArgs: map[string]any{"dns": map[string]any{"servers": []any{clusterDNS}}},
	}
	s.node.Host.Do(func() { _, err = cni.AddNetworkList(context.Background(), list, conf) })
	if err != nil {
		s.t.Fatalf("%s: ADD %s: %v", s.name, name, err)
	}
	// The first packet of a new link may wait for a neighbour.
	testutil.Eventually(s.t, func() error {
		_, err := testutil.Ask(p.NetNS, netip.AddrPortFrom(clusterDNS, 53), "first.svc.cluster.local.", dns4, "udp", testutil.AskOptions{Timeout: 300 * time.Millisecond})
		return err
	})
	return p
}

const dns4 = 1 // type A

// scratch makes a folder in memory, where the runtime's state is on a real node.
func scratch(t testutil.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "neardns-faults-")
	if err != nil {
		dir, err = os.MkdirTemp("", "neardns-faults-")
	}
	if err != nil {
		t.Fatalf("make folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
