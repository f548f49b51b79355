package node

import (
	"path/filepath"
)

// program is one that a node's first process starts, and starts again when it ends.
type program struct {
	Name  string
	Args  []string // of the command itself, whose path is the first
	Await string   // what must answer first: tcp://host:port or https://host:port/path
	Path  string   `json:",omitempty"` // before the machine's PATH
	// Outside runs it in the network namespace of the world outside of the cluster.
	Outside bool `json:",omitempty"`
}

const (
	etcdAddr   = "127.0.0.1:2379"
	apiAddr    = nodeAddr4 + ":6443"
	apiIsReady = "https://" + apiAddr + "/readyz"
)

// programs are all of a node's, in the order in which they start.
func (h host) programs(kubernetes, runtimeDir string) []program {
	k8s := func(name string, args ...string) []string {
		return append([]string{path("bin", kubernetes, name)}, args...)
	}
	pki := func(name string) string { return path("pki", name) }
	inside := path("kubeconfig.inside")
	own := h.addrs()
	node := []program{
		{Name: "containerd", Path: runtimeDir, Args: []string{filepath.Join(runtimeDir, "containerd"), "--config", path("containerd.toml")}},
		{Name: "kubelet", Await: apiIsReady, Args: k8s("kubelet", "--config=/var/lib/kubelet/config.yaml", "--kubeconfig="+inside,
			"--hostname-override="+h.name(), "--node-ip="+own[0]+","+own[1])},
		{Name: "kube-proxy", Await: apiIsReady, Args: k8s("kube-proxy", "--config="+h.path("kube-proxy.yaml"))},
	}
	if h != 0 {
		return node
	}
	return append([]program{
		{Name: "outside", Outside: true, Args: []string{path("bin/tools/coredns"), "-conf", path("Corefile.outside")}},
		{Name: "etcd", Args: k8s("etcd", "--data-dir="+path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://"+etcdAddr, "--advertise-client-urls=http://"+etcdAddr, "--listen-peer-urls=http://127.0.0.1:2380")},
		{Name: "kube-apiserver", Await: "tcp://" + etcdAddr, Args: k8s("kube-apiserver", "--etcd-servers=http://"+etcdAddr,
			"--service-cluster-ip-range="+services, "--secure-port=6443", "--advertise-address="+nodeAddr4,
			"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"), "--cert-dir="+path("pki"),
			"--token-auth-file="+pki("tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+pki("accounts.key"),
			"--service-account-signing-key-file="+pki("accounts.key"), "--kubelet-preferred-address-types=InternalIP")},
		{Name: "kube-controller-manager", Await: apiIsReady, Args: k8s("kube-controller-manager", "--kubeconfig="+inside, "--leader-elect=false",
			"--service-account-private-key-file="+pki("accounts.key"), "--root-ca-file="+pki("ca.crt"), "--cert-dir="+path("pki"),
			"--authentication-skip-lookup", "--authentication-tolerate-lookup-failure")},
		{Name: "kube-scheduler", Await: apiIsReady, Args: k8s("kube-scheduler", "--kubeconfig="+inside, "--leader-elect=false", "--cert-dir="+path("pki"),
			"--authentication-skip-lookup", "--authentication-tolerate-lookup-failure")},
	}, node...)
}
