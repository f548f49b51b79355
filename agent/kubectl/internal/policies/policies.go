// Package policies finds network policies that keep pods' queries from the cache. It is pure: the caller reads the policies.
package policies

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const dnsPort = 53

// Blocking returns, as namespace/name, the egress policies that let pods query DNS servers but not each steering address. Most policy
// engines check a packet after the pod table has rewritten its destination to such an address, so these pods stay on kube-dns. Blocking
// examines only policies of the Kubernetes kind NetworkPolicy.
func Blocking(policies []networkingv1.NetworkPolicy, steering []netip.Addr) (names []string) {
	for _, p := range policies {
		if !restrictsEgress(&p) {
			continue
		}
		rules := rulesFor(&p, policies)
		if allows(rules, netip.Addr{}) && slices.ContainsFunc(steering, func(a netip.Addr) bool { return !allows(rules, a) }) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return names
}

func restrictsEgress(p *networkingv1.NetworkPolicy) bool {
	return slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || len(p.Spec.PolicyTypes) == 0 && len(p.Spec.Egress) > 0
}

// rulesFor returns the egress rules that apply to every pod that p selects: those of p, and those of policies with the same selector or
// with an empty one.
func rulesFor(p *networkingv1.NetworkPolicy, policies []networkingv1.NetworkPolicy) (rules []networkingv1.NetworkPolicyEgressRule) {
	for _, q := range policies {
		all := equality.Semantic.DeepEqual(q.Spec.PodSelector, metav1.LabelSelector{})
		if q.Namespace == p.Namespace && restrictsEgress(&q) && (all || equality.Semantic.DeepEqual(q.Spec.PodSelector, p.Spec.PodSelector)) {
			rules = append(rules, q.Spec.Egress...)
		}
	}
	return rules
}

// allows reports whether rules allow DNS queries over UDP and TCP to address a. For the zero Addr, it reports whether they allow DNS over
// UDP to any destination at all.
func allows(rules []networkingv1.NetworkPolicyEgressRule, a netip.Addr) bool {
	passes := func(protocol corev1.Protocol) bool {
		return slices.ContainsFunc(rules, func(r networkingv1.NetworkPolicyEgressRule) bool {
			to := func(p networkingv1.NetworkPolicyPeer) bool { return holds(p.IPBlock, a) }
			peer := !a.IsValid() || len(r.To) == 0 || slices.ContainsFunc(r.To, to)
			port := len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool { return isDNS(p, protocol) })
			return peer && port
		})
	}
	return passes(corev1.ProtocolUDP) && (!a.IsValid() || passes(corev1.ProtocolTCP))
}

func holds(block *networkingv1.IPBlock, a netip.Addr) bool {
	if block == nil {
		return false
	}
	in := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		return err == nil && prefix.Contains(a)
	}
	return in(block.CIDR) && !slices.ContainsFunc(block.Except, in)
}

// isDNS reports whether a rule's port includes port 53 of the protocol. A named port is defined by the destination pod, for example
// kube-dns, and counts if its name contains "dns".
func isDNS(p networkingv1.NetworkPolicyPort, protocol corev1.Protocol) bool {
	switch of := p.Protocol; {
	case of == nil && protocol != corev1.ProtocolTCP, of != nil && *of != protocol:
		return false
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return strings.Contains(p.Port.StrVal, "dns")
	case p.EndPort != nil:
		return p.Port.IntVal <= dnsPort && dnsPort <= *p.EndPort
	}
	return p.Port.IntVal == dnsPort
}
