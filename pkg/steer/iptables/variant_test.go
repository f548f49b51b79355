package iptables

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestKubeletVariant(t *testing.T) {
	testutil.RequireRoot(t)
	for name, tc := range map[string]struct {
		programs []string // programs, each followed by the chain that it makes
		want     Variant
		why      string
	}{
		"no kubelet":                {nil, NFT, "no kubelet's chain"},
		"nft, a recent kubelet":     {[]string{"iptables-nft", "KUBE-IPTABLES-HINT"}, NFT, "KUBE-IPTABLES-HINT in iptables-nft"},
		"nft, an old kubelet":       {[]string{"iptables-nft", "KUBE-KUBELET-CANARY"}, NFT, "KUBE-KUBELET-CANARY in iptables-nft"},
		"nft, IPv6 alone":           {[]string{"ip6tables-nft", "KUBE-IPTABLES-HINT"}, NFT, "in iptables-nft"},
		"legacy, a recent kubelet":  {[]string{"iptables-legacy", "KUBE-IPTABLES-HINT"}, Legacy, "KUBE-IPTABLES-HINT in iptables-legacy"},
		"legacy, an old kubelet":    {[]string{"iptables-legacy", "KUBE-KUBELET-CANARY"}, Legacy, "in iptables-legacy"},
		"legacy, IPv6 alone":        {[]string{"ip6tables-legacy", "KUBE-IPTABLES-HINT"}, Legacy, "in iptables-legacy"},
		"legacy, others' nft rules": {[]string{"iptables-nft", "DOCKER", "iptables-legacy", "KUBE-IPTABLES-HINT"}, Legacy, "in iptables-legacy"},
		"nft, others' legacy rules": {[]string{"iptables-legacy", "DOCKER", "iptables-nft", "KUBE-IPTABLES-HINT"}, NFT, "in iptables-nft"},
		"both: nft is what's newer": {[]string{"iptables-legacy", "KUBE-KUBELET-CANARY", "iptables-nft", "KUBE-IPTABLES-HINT"}, NFT, "in iptables-nft"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "hint")
			for i := 0; i < len(tc.programs); i += 2 {
				ns.Run(tc.programs[i], "-w", "-t", "mangle", "-N", tc.programs[i+1])
			}
			var got Variant
			var why string
			ns.Do(func() { got, why = KubeletVariant() })
			if got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("%s, by %q; want %s by %q", got, why, tc.want, tc.why)
			}
		})
	}
}
