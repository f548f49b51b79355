package nodestate

import "path/filepath"

// Kubelet has the parts of the kubelet's configuration that neardns uses, with the kubelet's own keys. The installer, which mounts the
// kubelet's configuration, writes it for the agent, which does not.
type Kubelet struct {
	From          string   `json:"from,omitempty"` // the files that it was read from
	ClusterDomain string   `json:"clusterDomain,omitempty"`
	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	ResolvConf    string   `json:"resolvConf,omitempty"`
}

// KubeletFile is the record in a state folder. Its name has a YAML suffix for readers of YAML, of which JSON is a subset.
func KubeletFile(stateDir string) Record[Kubelet] {
	return Record[Kubelet]{Path: filepath.Join(stateDir, "kubelet.yaml"), what: "the kubelet's configuration"}
}
