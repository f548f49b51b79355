package policies

import (
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
)

// samples are a cluster's network policies: in shop and pay, pods may query only kube-dns; in all other namespaces they may query the cache
// or no server at all.
func samples(t *testing.T) (out []networkingv1.NetworkPolicy) {
	t.Helper()
	const dns = "egress: [{to: [{namespaceSelector: {}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}]"
	const web = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], "
	steering := strings.ReplaceAll(dns, "namespaceSelector: {}", "ipBlock: {cidr: 169.254.20.11/32}")
	for name, spec := range map[string]string{
		"shop/restrict": web + dns,
		"pay/restrict":  web + "egress: [{to: [{podSelector: {}}], ports: [{protocol: UDP, port: dns}]}]",
		// A policy for other pods of the namespace allows nothing for these.
		"pay/other": "podSelector: {matchLabels: {app: db}}, policyTypes: [Egress], " + steering,
		// The sample next to the restricting policy, for the same pods or for all.
		"open/restrict": web + dns, "open/steering": web + steering,
		"wide/restrict": web + dns, "wide/steering": "podSelector: {}, policyTypes: [Egress], " + steering,
		"range/restrict": web + "egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}], ports: [{protocol: UDP, port: 1, endPort: 1000}, {port: 53}]}]",
		"any/restrict":   web + "egress: [{ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}]",
		"all/restrict":   web + "egress: [{}]",
		"none/deny":      "podSelector: {}, policyTypes: [Egress]", // no DNS at all
		"in/ingress":     "podSelector: {}, policyTypes: [Ingress], ingress: [{}]",
		"old/ingress":    "podSelector: {}, ingress: [{}]",
	} {
		p := networkingv1.NetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte("spec: {"+spec+"}"), &p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p.Namespace, p.Name, _ = strings.Cut(name, "/")
		out = append(out, p)
	}
	return out
}

func TestBlocking(t *testing.T) {
	steering := []netip.Addr{netip.MustParseAddr("169.254.20.11")}
	testutil.Equal(t, "policies", []string{"pay/restrict", "shop/restrict"}, Blocking(samples(t), steering))
}
