package nodestate

import "path/filepath"

// Kubelet has the settings of the kubelet's configuration that neardns uses. Except for From, the JSON keys are the kubelet's own. The
// installer mounts that configuration and writes this copy for the agent, which usually does not mount it.
type Kubelet struct {
	From          string   `json:"from,omitempty"` // the kubelet's configuration files from which the installer read these settings
	ClusterDomain string   `json:"clusterDomain,omitempty"`
	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	ResolvConf    string   `json:"resolvConf,omitempty"`
}

// KubeletFile returns the record of the kubelet's settings in a state folder. The file has JSON but is named .yaml, because the agent
// reads it like the kubelet's own YAML files.
func KubeletFile(stateDir string) Record[Kubelet] {
	return Record[Kubelet]{Path: filepath.Join(stateDir, "kubelet.yaml"), what: "the kubelet's configuration"}
}
