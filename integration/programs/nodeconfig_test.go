package programs

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestNodeConfig: the keys of a test replace the installation's, with all that is below them, and the others stay.
func TestNodeConfig(t *testing.T) {
	read := func(text string) (keys map[string]any) {
		t.Helper()
		if err := yaml.UnmarshalStrict([]byte(text), &keys); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		return keys
	}
	base := read(NodeConfig(t, ""))
	if base["adoptPods"] != true || base["kernelHits"] == nil || base["resolvConf"] == nil || base["upstreams"] == nil {
		t.Fatalf("the default NodeConfig: %v", base)
	}
	text := NodeConfig(t, "upstreams: {external: []}\nadoptPods: false\nredirects:\n- 10.96.0.10\n")
	got := read(text) // it refuses a key that is there twice
	if got["adoptPods"] != false || got["redirects"] == nil || got["kernelHits"] == nil || strings.Contains(text, "external: auto") {
		t.Errorf("%s", text)
	}
	if len(got) != len(base)+1 {
		t.Errorf("%d keys, want the %d of the installation and one more:\n%s", len(got), len(base), text)
	}
}
