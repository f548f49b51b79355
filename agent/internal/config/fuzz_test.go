package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil/golden"
)

// Whatever the file holds, Load gives a configuration that reads back as itself, or a fault with a place.
func FuzzLoad(f *testing.F) {
	f.Add(head + "redirects: [10.96.0.10]\n")
	f.Add(head + "redirects:\n- clusterDNS: 10.96.0.10\n  steering: ${A}\nstubDomains: {a.b: [10.1.1.1, \"[::1]:5\"]}\nlisten: {health: \"${A}:1\"}\n")
	f.Add(head + "redirects: [10.96.0.10]\nsnippets:\n  .: |\n    a {\n\tb\n    }\n\n  c.d: 'x ''y'' \\'\nlog: {queries: off}\n")
	f.Add(head + "redirects: [10.96.0.10]\npodDNS: {options: [ndots:2, {name: a, value: 1}], namespaces: {shop: {policy: None, nameservers: ['::1']}}}\n")
	f.Add("a: &b [*b]\n<<: !!x {}\n? - c\n: d\n---\n")
	cases, _ := filepath.Glob("testdata/bad/*.txt")
	for _, file := range cases {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(golden.Sections(string(data))["node.yaml"])
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		w := world{env: map[string]string{"A": "192.0.2.1"}, files: map[string]string{"node.yaml": text, kubeletConfig: "clusterDNS: [10.96.0.10]"}}
		n, err := Load("node.yaml", w.Env())
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without words")
			}
			return
		}
		shown := n.Show()
		again, err := Load("node.yaml", world{env: w.env, files: map[string]string{"node.yaml": shown}}.Env())
		if err != nil {
			t.Fatalf("shown is not taken: %v\n%s", err, shown)
		}
		if diff := cmp.Diff(*n, *again, asValues, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("shown is not the same (-first +again):\n%s\n%s", diff, shown)
		}
	})
}

func FuzzKubelet(f *testing.F) {
	f.Add("clusterDNS: [10.96.0.10]\nclusterDomain: a.b\n")
	f.Add(`{"clusterDNS": [1, "x", null], "clusterDomain": {}}`)
	f.Fuzz(func(t *testing.T, text string) {
		w := world{env: map[string]string{"KUBE_DNS_SERVICE_HOST": "10.0.0.1"}, files: map[string]string{kubeletConfig: text}}
		if n, err := Load("", w.Env()); err == nil && n.Validate() != nil {
			t.Error(n.Validate())
		}
	})
}
