package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// OptedOut is why a pod is not steered whose annotation says so.
const OptedOut = "the pod's annotation " + AnnotationSteer + " says so"

// AsksOthers is why a pod is not steered that asks neither a cluster DNS address nor a local one; "" where it may ask one. No
// nameservers are such as are not known, or the host's own: steering does no harm then, since only questions to a cluster DNS address
// are touched.
func AsksOthers(nameservers []string, redirects []steer.Redirect, locals []steer.Local) string {
	if len(nameservers) == 0 {
		return ""
	}
	for _, s := range nameservers {
		a, ok := plain(s)
		if ok && (slices.ContainsFunc(redirects, func(r steer.Redirect) bool { return r.ClusterDNS == a }) ||
			slices.ContainsFunc(locals, func(l steer.Local) bool { return l.Address == a })) {
			return ""
		}
	}
	return "none of the pod's nameservers (" + strings.Join(nameservers, ", ") + ") is a configured cluster DNS address or a local one"
}

// LocalOf returns the local address that a pod names, and that answers for this cluster DNS address; the zero Addr for none.
func LocalOf(nameservers []string, locals []steer.Local, clusterDNS netip.Addr) netip.Addr {
	for _, l := range locals {
		if l.ClusterDNS == clusterDNS && slices.ContainsFunc(nameservers, func(s string) bool {
			a, ok := plain(s)
			return ok &&
				a == l.Address
		}) {
			return l.Address
		}
	}
	return netip.Addr{}
}

// plain reads a nameserver as our addresses are written.
func plain(nameserver string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(nameserver)
	return a.Unmap().WithZone(""), err == nil
}
