package overlay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

// The annotation is JSON, or YAML as kubectl reads it.
func TestParams(t *testing.T) {
	const flow = `search: [a.b]
options: [{name: ndots, value: "2"}, {name: edns0}]`
	for _, text := range []string{
		flow,
		`{"search": ["a.b"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}`,
		"---\n# as people write it\nsearch:\n- 'a.b' # quoted\noptions:\n- name: ndots\n  value: 2\n- name: edns0\n",
		"options:\n  - ndots:2\n  - \"edns0\"\nsearch:\n  - >-\n    a.b\n",
	} {
		var w PodRules
		testutil.Check(t, w.params(text), text)
		o := resolvconf.Overlay{Settings: resolvconf.Settings{Searches: []string{"a.b"}, Options: []string{"ndots:2", "edns0"}}}
		want := []layer{{"annotation neardns.io/dns-params", o}}
		testutil.Equal(t, text, want, w.layers, cmp.AllowUnexported(layer{}))
	}
	bomb := "a: &a [x]\n"
	for c := 'b'; c <= 'z'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 20) + "]\n"
	}
	for text, want := range map[string]string{
		"":                           "is null: ",
		"# only this":                "is null: ",
		"options: [ndots: 1]":        "options[0].name: missing",
		"options:\n- yes\n":          "options[0]: ",
		"options: [a]\noptions: [b]": `"options" already set`,
		"options:\n\t- ndots:2\n":    "line 2: found character that cannot start any token",
		`{"options": ["ndots:2"}`:    "did not find expected ',' or ']'",
		bomb:                         "anchors and aliases",
		"[&a " + strings.Repeat("x", 1000) + strings.Repeat(",*a", 1000) + "]": "anchors and aliases",
		`{"options": ["` + strings.Repeat("x", 64<<10) + `"]}`:                 "longer than 65536 bytes",
		"options: [a]\n---\nsearch: [a.b]":                                     "more than one YAML document",
		"options: [a]\n...\nsearch: [a.b]":                                     "more than one YAML document",
		strings.Repeat("[", 20000):                                             "exceeded max depth",
		"searches: \xff":                                                       "invalid",
		"- options:\n  - name: ndots":                                          "is a list: ",
	} {
		var w PodRules
		testutil.WantError(t, w.params(text), want, fmt.Sprintf("%.60q", text))
		testutil.Equal(t, fmt.Sprintf("layers of %.60q", text), 0, len(w.layers))
	}
}
