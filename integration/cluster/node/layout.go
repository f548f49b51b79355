// Package node makes one machine into one or several nodes of a Kubernetes cluster of its own: etcd, the control plane, a container
// runtime, the kubelet, kube-proxy and CoreDNS as kube-dns, all of them the real programs, in namespaces (network, mounts,
// processes, IPC, host name) that they share with no other. What a node has in /etc, /opt, /run and /var/lib is the node's
// own there, so that the products' manifests apply as they are. The first node has the control plane, too; a router (outside)
// is between the nodes.
//
// The first process of a node's namespaces is this package's too (initialize). When it ends, by whatever, the kernel ends all the
// node's others and takes links, rules and mounts away; what is left is one folder (Dir) and the pods' control groups, which Remove
// takes away, also after a crash.
//
// Nothing of the machine's network is changed, but for one TCP listener on its loopback that leads to the API server.
package node

import (
	"fmt"
	"net/netip"
	"path/filepath"
)

// Dir is the one place for all files of a cluster. It must not lie in a folder that the node has for itself (ownFolders).
const Dir = "/var/tmp/neardns-cluster"

// Registries is the folder in which the runtime looks up how it reaches a registry (containerd's hosts.toml). It is read at each pull.
const Registries = Dir + "/registries"

// The cluster's addresses. All are private: only the node's own namespaces know them.
const (
	nodeAddr4    = "192.168.96.10" // of the first node, which has the API server
	nodeAddr6    = "fd00:96::10"
	outsideAddr4 = "192.168.96.1" // the way out of the first node, and the DNS server outside of the cluster
	outsideAddr6 = "fd00:96::1"
	services     = "10.96.0.0/16,fd00:10:96::/112"
	apiService4  = "10.96.0.1"
	apiService6  = "fd00:10:96::1"
)

// KubeDNS are the cluster DNS addresses, IPv4 first.
func KubeDNS() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
}

// Outside are the addresses of the DNS server outside of the cluster. It knows *.outside.test.
func Outside() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(outsideAddr4), netip.MustParseAddr(outsideAddr6)}
}

// Addrs are the first node's own addresses, IPv4 first.
func Addrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)}
}

// Images, all imported before the first pod starts.
const (
	PodImage     = "neardns.test/pod:1"
	coreDNSImage = "neardns.test/coredns:1"
)

// Name is the first node's, in the cluster. Others are called node-2, node-3 and so on.
const Name = "node"

// host is one of the nodes, by its number from 0.
type host int

func (h host) name() string {
	if h == 0 {
		return Name
	}
	return fmt.Sprintf("%s-%d", Name, h+1)
}

// path is a file's of this node alone.
func (h host) path(elem ...string) string {
	if h == 0 {
		return path(elem...)
	}
	return path(append([]string{h.name()}, elem...)...)
}

// addrs are its own addresses, IPv4 first, and outside those of the way out.
func (h host) addrs() [2]string {
	return [2]string{fmt.Sprintf("192.168.%d.10", 96+h), h.subnet6("96") + "10"}
}

func (h host) outside() [2]string {
	return [2]string{fmt.Sprintf("192.168.%d.1", 96+h), h.subnet6("96") + "1"}
}

// pods are the ranges of its pods' addresses.
func (h host) pods() [2]string {
	return [2]string{fmt.Sprintf("10.244.%d.0/24", h), h.subnet6("10:244") + "/64"}
}

func (h host) subnet6(of string) string {
	if h == 0 {
		return "fd00:" + of + "::"
	}
	return fmt.Sprintf("fd00:%s:%d::", of, h)
}

// cgroup is the control group, in every hierarchy, that its pods are in.
func (h host) cgroup() string {
	if h == 0 {
		return cgroupName
	}
	return cgroupName + "/" + h.name()
}

// socket is the runtime's.
const socket = "/run/containerd/containerd.sock"

// ownFolders are a node's own; what the machine has there is not seen by the node. Each is one of the node's folders below Dir.
func ownFolders() map[string]string {
	return map[string]string{"/etc": "etc", "/opt": "opt", "/var/lib": "var-lib", "/var/log": "var-log"}
}

// path is a file's below Dir, the same inside and outside of the node's namespaces.
func path(elem ...string) string { return filepath.Join(append([]string{Dir}, elem...)...) }

// Kubeconfig leads to the API server from the machine's own network.
func Kubeconfig() string { return path("kubeconfig") }
