package nodestate

import "path/filepath"

// kubeletName is the file in stateDir. It has a YAML suffix for readers of YAML, of which JSON is a subset.
const kubeletName = "kubelet.yaml"

// Kubelet has the parts of the kubelet's configuration that neardns uses, with the kubelet's own keys. The installer, which mounts the
// kubelet's configuration, writes it for the agent, which does not.
type Kubelet struct {
	From          string   `json:"from,omitempty"` // the files that it was read from
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
