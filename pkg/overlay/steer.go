package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// OptedOut is the reason for not steering a pod that opted out by annotation.
const OptedOut = "the pod's annotation " + AnnotationSteer + " says so"

// AsksOthers returns the reason for not steering a pod without a cluster DNS address or local address among its nameservers; "" if it may
// have one. Without nameservers they are unknown, or the host's own. Steering does no harm then, because it affects only queries to a
// cluster DNS address.
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

// LocalOf returns the local address that a pod names in place of a cluster DNS address; the zero Addr for none.
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

// plain parses a nameserver, without a zone and an IPv4 prefix in IPv6.
func plain(nameserver string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(nameserver)
	return a.Unmap().WithZone(""), err == nil
}
