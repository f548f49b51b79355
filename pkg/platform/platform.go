// Package platform has a table of Kubernetes distributions: the paths on their nodes that neardns needs, and the name of the
// ConfigMap with kube-dns's Corefile. The agent and the installer look for these paths. The Helm chart's files/platforms.yaml is
// rendered from the fields with JSON names.
package platform

import "strings"

// Platform is one Kubernetes distribution.
type Platform struct {
	Name string `json:"-"`
	// Kubelet is the path of the kubelet's configuration: a file, which may have drop-ins in the folder FILE.d, or a folder of drop-ins,
	// whose name ends in ".d". Drop-ins are read in the order of their names, and later ones override earlier ones. "" means that the
	// kubelet has only flags.
	Kubelet string `json:"-"`
	// Mount is the path that the installer's container mounts to read Kubelet: a file, or, if it ends in a slash, a folder. "" means that
	// it mounts nothing.
	Mount string `json:"kubelet"`
	// CNIBin and CNIConf are the container runtime's folders for CNI plugins and for network configurations.
	CNIBin  string `json:"cniBin"`
	CNIConf string `json:"cniConf"`
	// Namespace and Corefile name the ConfigMap with kube-dns's Corefile. Only pods in that namespace can mount it.
	Namespace string `json:"namespace"`
	Corefile  string `json:"corefile"`
	// Service is the prefix of the environment variables for kube-dns's Service that Kubernetes sets in pods of that namespace.
	Service string `json:"-"`
}

// Values that occur more than once in the table.
const (
	bin, conf        = "/opt/cni/bin", "/etc/cni/net.d"
	kubeadm          = "/var/lib/kubelet/config.yaml"
	system           = "kube-system"
	coredns, kubeDNS = "coredns", "KUBE_DNS"
	k3s, rke2        = "/var/lib/rancher/k3s/agent/etc/", "/var/lib/rancher/rke2/agent/etc/"
	etc, home, snap  = "/etc/kubernetes/", "/home/kubernetes/", "/var/snap/microk8s/current/"
)

// All returns the platforms. The function Here returns the first that matches a node. The table's sources, on github.com unless another
// site is named:
//
//   - kubeadm, kind, minikube: kubernetes/kubernetes cmd/kubeadm/app/constants (KubeletConfigurationFileName); the last two run kubeadm.
//   - k3s: docs.k3s.io/installation/packaged-components and docs.k3s.io/advanced ("00-k3s-defaults.conf"); k3s-io/k3s
//     pkg/daemons/agent/agent_linux.go (config-dir), the generated containerd config.toml (bin_dir, conf_dir).
//   - rke2: docs.rke2.io/advanced ("00-rke2-defaults.conf"); rancher/rke2-charts rke2-coredns (names of Service and ConfigMap).
//   - openshift: openshift/machine-config-operator templates/worker/01-worker-kubelet and 01-worker-container-runtime (network_dir,
//     plugin_dirs); openshift/cluster-dns-operator (Service and ConfigMap dns-default in openshift-dns).
//   - eks: awslabs/amazon-eks-ami nodeadm/internal/kubelet/config.go (AL2023: config.json and config.json.d).
//   - bottlerocket: bottlerocket-os/bottlerocket-core-kit packages/kubernetes-* (kubelet --config /etc/kubernetes/kubelet/config).
//   - gke: kubernetes/kubernetes cluster/gce/gci/configure-helper.sh (kubelet-config.yaml and bin in /home/kubernetes).
//   - aks: Azure/AgentBaker parts/linux/cloud-init/artifacts (kubeletconfig.json on some nodes; others have flags in
//     /etc/default/kubelet).
//   - talos: siderolabs/talos internal/app/machined/pkg/system/services/kubelet.go (kubelet.yaml; go-cni's default folders).
//   - microk8s: microk8s.io/docs/ref-services (args; the kubelet has only flags).
func All() []Platform {
	return []Platform{
		{"kubeadm", kubeadm, kubeadm, bin, conf, system, coredns, kubeDNS},
		{"kind", kubeadm, kubeadm, bin, conf, system, coredns, kubeDNS},
		{"minikube", kubeadm, kubeadm, bin, conf, system, coredns, kubeDNS},
		{"k3s", k3s + "kubelet.conf.d", k3s + "kubelet.conf.d/", "/var/lib/rancher/k3s/data/cni", k3s + "cni/net.d", system, coredns, kubeDNS},
		{"rke2", rke2 + "kubelet.conf.d", rke2 + "kubelet.conf.d/", bin, conf, system, "rke2-coredns-rke2-coredns", "RKE2_COREDNS_RKE2_COREDNS"},
		{"eks", etc + "kubelet/config.json", etc + "kubelet/", bin, conf, system, coredns, kubeDNS},
		{"bottlerocket", etc + "kubelet/config", etc + "kubelet/config", bin, conf, system, coredns, kubeDNS},
		{"gke", home + "kubelet-config.yaml", home + "kubelet-config.yaml", home + "bin", conf, system, coredns, kubeDNS},
		{"aks", "/etc/default/kubeletconfig.json", "", bin, conf, system, coredns, kubeDNS},
		{"talos", etc + "kubelet.yaml", etc + "kubelet.yaml", bin, conf, system, coredns, kubeDNS},
		// The entry of openshift comes after kubeadm's: on a kubeadm node, the file of this name has the kubelet's credentials.
		{"openshift", etc + "kubelet.conf", etc + "kubelet.conf", "/var/lib/cni/bin", etc + "cni/net.d",
			"openshift-dns", "dns-default", "DNS_DEFAULT"},
		{"microk8s", "", "", snap + "opt/cni/bin", snap + "args/cni-network", system, coredns, kubeDNS},
	}
}

// KubeletFiles returns the files of the kubelet's configuration in the order in which they apply; later ones override earlier ones. The
// file Kubelet may be missing. glob is filepath.Glob, or nil to leave out drop-ins.
func (p Platform) KubeletFiles(glob func(pattern string) ([]string, error)) []string {
	if p.Kubelet == "" {
		return nil
	}
	var files []string
	folder := p.Kubelet
	if !strings.HasSuffix(folder, ".d") {
		files, folder = []string{p.Kubelet}, p.Kubelet+".d"
	}
	if glob == nil {
		return files
	}
	more, _ := glob(folder + "/*.conf") // filepath.Glob sorts by name, and returns no error for a valid pattern
	return append(files, more...)
}

// ServiceHost returns the name of the environment variable that has the cluster DNS address.
func (p Platform) ServiceHost() string { return p.Service + "_SERVICE_HOST" }

// Here returns the platform of this node and what it was found by: the first whose kubelet configuration exists, whose CNIConf is not the
// default folder and exists, or whose Service has a name of its own and is in the environment. If there is none, it returns the first
// platform and "". exists reports whether a file or folder exists; lookup is os.LookupEnv.
func Here(exists func(path string) bool, lookup func(name string) (string, bool)) (p Platform, by string) {
	for _, p := range All() {
		switch service, _ := lookup(p.ServiceHost()); {
		case p.Kubelet != "" && exists(p.Kubelet):
			return p, p.Kubelet
		case p.CNIConf != conf && exists(p.CNIConf):
			return p, p.CNIConf
		case p.Service != kubeDNS && service != "":
			return p, p.ServiceHost()
		}
	}
	return All()[0], ""
}
