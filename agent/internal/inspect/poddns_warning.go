package inspect

import (
	"fmt"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
)

// PodDNSWarning returns a warning if pods may not get the DNS settings that the configuration wants for them (podDNS); "" if there is no
// reason for a warning.
func PodDNSWarning(conf *config.Node, files []podfile.File) string {
	if !conf.PodDNS.Overlays() || conf.ResolvConf.Mode == conflist.ResolvConfOff {
		return ""
	}
	reached := false
	for _, f := range files {
		if f.DNS == nil || f.PodNamespace == "" {
			continue
		}
		switch f.DNS.State {
		case podfile.NoMethod, podfile.Waiting:
			return fmt.Sprintf("podDNS: pod %s waits for its settings (%s): apply install/overlays/pod-dns, which connects the agent to the "+
				"runtime's NRI", nameOf(f), f.DNS.Reason)
		case podfile.Overlaid:
			reached = true
		}
	}
	if reached || conf.IsSet("resolvConf.nri") {
		return ""
	}
	return "podDNS: no pod has shown yet how this node's runtime takes these settings: containerd 1.x and CRI-O by the plugin alone; " +
		"for containerd 2 " +
		"apply install/overlays/pod-dns before any pod is made, or write resolvConf.nri where the agent sees the runtime's NRI"
}
