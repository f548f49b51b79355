package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// OptedOut is why a pod is not steered whose annotation says so.
const OptedOut = "the pod's annotation " + AnnotationSteer + " says so"

// AsksOthers is why a pod is not steered that asks none of the cluster DNS addresses; "" where it may ask one. No nameservers are
// such as are not known, or the host's own: steering does no harm then, since only questions to a cluster DNS address are touched.
func AsksOthers(nameservers []string, redirects []steer.Redirect) string {
	if len(nameservers) == 0 {
		return ""
	}
	for _, s := range nameservers {
		a, err := netip.ParseAddr(s)
		if err == nil && slices.ContainsFunc(redirects, func(r steer.Redirect) bool { return r.ClusterDNS == a.Unmap().WithZone("") }) {
			return ""
		}
	}
	return "none of the pod's nameservers (" + strings.Join(nameservers, ", ") + ") is a configured cluster DNS address"
}
