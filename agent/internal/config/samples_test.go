package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestSamples(t *testing.T) {
	w := world{
		env:   map[string]string{"NODE_IP": "192.0.2.4", "KUBE_DNS_UPSTREAM_SERVICE_HOST": "10.96.0.11"},
		files: map[string]string{kubeletConfig: "clusterDNS: [10.96.0.10]\n"},
	}
	files, err := filepath.Glob("../../../conf/nodeconfig-*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("samples: %v %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			load(t, testutil.ReadFile(t, file), w)
		})
	}

	// The full sample is where keys are documented: it must have all, with their defaults unless a line has another, and
	// be right about what reloads.
	text := testutil.ReadFile(t, "../../../conf/nodeconfig-full.yaml")
	full := load(t, text, w)
	plain := load(t, head, w)
	other := map[string]bool{"interceptNode": true, "upstreams.cluster": true, "stubDomains": true, "snippets": true, "corefile": true, "podDNS": true}
	for _, f := range table() {
		if f.name == "corefile" {
			if !strings.Contains(text, "# corefile: /") {
				t.Error("corefile is not named")
			}
			continue
		}
		if !full.IsSet(f.name) {
			t.Errorf("%s is not in the full sample", f.name)
		}
		if diff := cmp.Diff(flow(f.show(plain)), flow(f.show(full))); diff != "" && !other[f.name] {
			t.Errorf("%s is not at its default (-default +sample):\n%s", f.name, diff)
		}
	}
	for name, comment := range documented(text) {
		for _, f := range table() {
			if reloads := strings.Contains(comment, "Reloads."); f.name == name && f.reload != reloads {
				t.Errorf("%s: the sample says reloads=%v, the table %v", name, reloads, f.reload)
			}
		}
	}
}

// documented gives the comment of each key of the sample, from above and next to it.
func documented(text string) map[string]string {
	out := map[string]string{}
	above, group := "", ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(trimmed, "# "); ok && !strings.HasPrefix(s, "corefile: ") {
			above += s + " "
			continue
		}
		key, rest, ok := strings.Cut(strings.TrimPrefix(trimmed, "# "), ":")
		if !ok || strings.HasPrefix(trimmed, "- ") {
			above = ""
			continue
		}
		if strings.HasPrefix(line, "  ") {
			key = group + "." + key
		} else {
			group = key
		}
		_, beside, _ := strings.Cut(rest, "# ")
		out[key] = strings.TrimSpace(above + beside)
		above = ""
	}
	return out
}
