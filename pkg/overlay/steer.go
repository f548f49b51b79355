package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// OptedOut is the reason for not steering a pod that opted out by annotation.
const OptedOut = "the pod's annotation " + AnnotationSteer + " says so"

// NotClusterDNS returns the reason for not steering a pod if no nameserver of the pod is a cluster DNS address or a local address, or
// else "". It returns "" too if the list is empty, because the nameservers are then unknown or the host's. Steering does no harm in
// that case: it affects only queries to a cluster DNS address.
func NotClusterDNS(nameservers []string, redirects []steer.Redirect, locals []steer.Local) string {
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

// LocalOf returns the local address that a pod has as nameserver in place of clusterDNS, or the zero Addr if it has none.
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

// plain parses the address of a nameserver. It drops the zone, and converts an IPv4-mapped IPv6 address to IPv4.
func plain(nameserver string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(nameserver)
	return a.Unmap().WithZone(""), err == nil
}
