package main

import (
	"fmt"
	"path/filepath"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// ourStand is a node with the agent, and a pod that ADD has steered. Its server is inKernel, with the NodeConfig of a new installation; or
// ours, without hits in the kernel; or plain: all queries go through CoreDNS.
func ourStand(b *bench, name string) *stand {
	s := b.newStand(name, "")
	more := "kernelHits: {mode: \"off\"}"
	var within []string
	switch name {
	case plain:
		more += "\nfastPath: \"off\""
	case inKernel:
		more = ""
		within = b.kernelFolder(s)
	}
	text := programs.NodeConfig(b.t, fmt.Sprintf(`clusterDomain: cluster.local
redirects: [%q]
localAddresses: [%q]
upstreams: {external: []}
%[4]s
kubeDNSConfigMap: %[3]s/none
stateDir: %[3]s/state
persistDir: %[3]s/persist
listen: {metrics: "127.0.0.1:9253", health: "127.0.0.1:8080"}
`, clusterDNS, localAddress, s.dir, more))
	config := s.write("nodeconfig.yaml", text)
	s.places = func(n int) { s.write("nodeconfig.yaml", fmt.Sprintf("%scache: {entries: %d}\n", text, n)) }
	rules, err := nft.Open(s.node.Host.FD())
	b.must(err)
	b.t.Cleanup(func() { _ = rules.Close() })
	s.start = func() *testutil.Process {
		return s.startOn(serverCPU, append(within, b.bin("neardns-agent"), "node", "--config", config)...)
	}
	// Ready is a lease for what pods query, over both protocols, and a fallback that is proven.
	s.ready = func() error {
		leases, err := rules.Leases()
		if err != nil {
			return err
		}
		held := 0
		for _, l := range leases {
			if l.Address != localAddress {
				held++
			}
		}
		proof, _, err := nodestate.ProofFile(filepath.Join(s.dir, "persist")).Read()
		if err == nil && (held < 2 || !proof.Covers(clusterDNS)) {
			err = fmt.Errorf("%d leases, proof %v", held, proof.ClusterDNS)
		}
		if err == nil && name == inKernel {
			err = s.inKernel()
		}
		return err
	}
	s.up()
	b.steer(s, s.pod, "bench")
	s.await()
	return s
}
