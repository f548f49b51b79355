package resolvconf

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/strict"
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
	node := Node{Host: host, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.0.0.10")}, ClusterDomain: "cluster.local"}

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
			v, err := strict.JSON("", "dnsParams", pod.Spec.DNSParams)
			testutil.Must(t, err)
			var r strict.Reader
			overlay := ReadOverlay(&r, r.Members(v))
			if err := r.Err(0); err != nil {
				golden.File(t, file, "error:\n"+err.Error()+"\n")
				return
			}
			got, err := overlay.Apply(node.Settings(policy, pod.Metadata.Namespace))
			testutil.Must(t, err)
			testutil.Equal(t, "notes", nil, got.Notes, cmpopts.EquateEmpty())
			golden.File(t, file, printed(t, got.Settings))
		})
	}
}

func printed(t *testing.T, s Settings) string {
	t.Helper()
	f, err := new(File).With(s)
	testutil.Must(t, err)
	return string(f.Bytes())
}
