package nodestate

import "path/filepath"

// kubeletName is the file in stateDir. Its end tells readers of YAML, which JSON is a part of.
const kubeletName = "kubelet.yaml"

// Kubelet is what the products go by of the kubelet's configuration, in its own words. The installer, which sees the kubelet's folder
// for a moment, writes it for those who do not: that folder holds every pod's secrets.
type Kubelet struct {
	ClusterDomain string   `json:"clusterDomain,omitempty"`
	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	ResolvConf    string   `json:"resolvConf,omitempty"`
}

func kubeletRecord() record[Kubelet] {
	return record[Kubelet]{what: "what the kubelet's configuration says"}
}

// KubeletPath names the file.
func KubeletPath(stateDir string) string { return filepath.Join(stateDir, kubeletName) }

// WriteKubelet stores the file. Like all of stateDir, it need not survive a reboot.
func WriteKubelet(stateDir string, k Kubelet) error {
	return kubeletRecord().write(KubeletPath(stateDir), k)
}

// RemoveKubelet removes the file. It succeeds when there is none.
func RemoveKubelet(stateDir string) error { return kubeletRecord().remove(KubeletPath(stateDir)) }
