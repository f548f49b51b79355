package resolvconf

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// seedPod has the DNS part of a pod in Kubernetes's proposal of dnsParams, which are decoded as an overlay.
type seedPod struct {
	Metadata struct{ Namespace string }
	Spec     struct {
		DNSPolicy string          `json:"dnsPolicy"`
		DNSParams json.RawMessage `json:"dnsParams"`
	}
}

// TestSeed checks the examples of the proposal: host.conf is the node's resolv.conf, each .yaml a pod.
func TestSeed(t *testing.T) {
	host, err := Parse([]byte(testutil.ReadFile(t, "testdata/seed/host.conf"))).Host()
	testutil.Must(t, err)
	node := Node{Host: &host, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.0.0.10")}, ClusterDomain: "cluster.local"}

	pods, err := filepath.Glob("testdata/seed/*.yaml")
	if err != nil || len(pods) != 4 {
		t.Fatalf("%d examples (%v)", len(pods), err)
	}
	for _, path := range pods {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var pod seedPod
			testutil.Must(t, yaml.Unmarshal([]byte(testutil.ReadFile(t, path)), &pod))
			policy, err := ParsePolicy(pod.Spec.DNSPolicy)
			testutil.Must(t, err)
			file := strings.TrimSuffix(path, ".yaml") + ".golden"
			overlay, err := DecodeOverlay("dnsParams", pod.Spec.DNSParams)
			if err != nil {
				golden.File(t, file, "error:\n"+err.Error()+"\n")
				return
			}
			p := Pod{Policy: policy, Namespace: pod.Metadata.Namespace}
			r := Form(node, p, overlay)
			if !r.Overlaid || r.Refused != nil || len(r.Notes) > 0 {
				t.Errorf("overlaid %v, refused %v, notes %v", r.Overlaid, r.Refused, r.Notes)
			}
			golden.File(t, file, printed(t, r.Settings))
			// The same settings as the pod's dnsConfig, which dnsParams became, give the same result.
			p.Config = &overlay.Settings
			golden.File(t, file, printed(t, Form(node, p, nil).Settings))
		})
	}
}

func printed(t *testing.T, s Settings) string {
	t.Helper()
	text, err := s.Print()
	testutil.Must(t, err)
	return string(text)
}
