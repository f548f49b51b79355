package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Faulty lists of Services: one clear error each, with the field and its line, and no configuration.
func TestFaultyHosts(t *testing.T) {
	label, long := strings.Repeat("a", 63), strings.Repeat("a", 64)
	many := make([]string, 21)
	for i := range many {
		many[i] = fmt.Sprintf("a/s%d", i)
	}
	cases := map[string]string{
		`shop/registry`:                     "hosts.services: is a string",
		`[5]`:                               "hosts.services[0]",
		`[""]`:                              "hosts.services[0]",
		`[registry]`:                        "hosts.services[0]",
		`[shop/]`:                           "hosts.services[0]",
		`[/registry]`:                       "hosts.services[0]",
		`[shop//registry]`:                  "hosts.services[0]",
		`[shop/registry/http]`:              "hosts.services[0]",
		`[shop.registry]`:                   "hosts.services[0]",
		`[Shop/registry]`:                   "hosts.services[0]",
		`[shop/-registry]`:                  "hosts.services[0]",
		`[shop/registry-]`:                  "hosts.services[0]",
		`[shop/Registry]`:                   "hosts.services[0]",
		`["shop/a\u0000"]`:                  "hosts.services[0]",
		`["shop/*"]`:                        "hosts.services[0]",
		`[null]`:                            "hosts.services[0]",
		`["${SERVICE}"]`:                    "hosts.services[0]",
		`[shop/my_registry]`:                "hosts.services[0]",
		`["shop/my registry"]`:              "hosts.services[0]",
		`["shop/a\n1.2.3.4 b"]`:             "hosts.services[0]",
		`[shop/rägistry]`:                   "hosts.services[0]",
		`[shop/registry:5000]`:              "hosts.services[0]",
		`[shop/` + long + `]`:               "hosts.services[0]",
		`[` + long + `/registry]`:           "hosts.services[0]",
		`[shop/registry, shop/registry]`:    "hosts.services[1]: shop/registry is listed twice",
		`[` + strings.Join(many, ",") + `]`: "hosts.services: names 21 Services",
	}
	for text, want := range cases {
		n, err := Load("node.yaml", world{files: map[string]string{"node.yaml": head + "redirects: [10.96.0.10]\nhosts:\n  services: " + text + "\n"}}.Env())
		if err == nil || n != nil {
			t.Errorf("%s is taken", text)
			continue
		}
		if said := err.Error(); !strings.HasPrefix(said, "node.yaml:5:") || !strings.Contains(said, want) || strings.Contains(said, "\n") {
			t.Errorf("%s: %q, want one error of %s", text, said, want)
		}
	}
	good := load(t, head+"redirects: [10.96.0.10]\nhosts:\n  services: ["+label+"/b, 0/1, a-b/c--d]\n", world{})
	testutil.Equal(t, "services", 3, len(good.Hosts.Services))
}
