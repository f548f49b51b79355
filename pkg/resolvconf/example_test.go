package resolvconf_test

import (
	"fmt"
	"net/netip"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// With this overlay, a pod queries names outside the cluster without trying its search list first.
func Example() {
	host, err := resolvconf.Parse([]byte("nameserver 10.1.1.10\nsearch foo.com\noptions ndots:1\n")).Host()
	if err != nil {
		fmt.Println(err)
		return
	}
	node := resolvconf.Node{Host: host, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local"}
	overlay := resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"ndots:1", "edns0"}}}
	r, err := overlay.Apply(node.Settings(resolvconf.ClusterFirst, "ns1"))
	if err != nil {
		fmt.Println(err)
		return
	}

	// The file that the pod has; only the lines that differ are rewritten.
	file := resolvconf.Parse([]byte("# by the runtime\nsearch ns1.svc.cluster.local svc.cluster.local cluster.local foo.com\nnameserver 10.96.0.10\noptions ndots:5\n"))
	file, err = file.With(r.Settings)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(file.Bytes()))
	// Output:
	// # by the runtime
	// search ns1.svc.cluster.local svc.cluster.local cluster.local foo.com
	// nameserver 10.96.0.10
	// options ndots:1 edns0
}
