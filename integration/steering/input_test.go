package steering

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func (n *node) read(name string) string {
	n.t.Helper()
	return testutil.ReadFile(n.t, n.path(name))
}

// TestBadInput: what cannot be right ends the start with exit code 2 and one error that names the place, before anything on
// the node is changed. TestBad (agent/internal/config) has every fault of a NodeConfig.
func TestBadInput(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual})
	before := n.static()
	n.write("bad-nameserver", "search example.org\nnameserver 10.0.0.300\n")
	n.write("unknown-plugin", ".:53 {\n    nonsense\n}\n")
	n.write("unclosed", ".:53 {\n    forward . 192.0.2.1\n")
	for _, tc := range []struct {
		name   string
		config string   // added to a good one
		names  []string // what the error must name
	}{
		{"address", "redirects: [10.96.0.300]\n", []string{"node.yaml:", "redirects[0]", "10.96.0.300"}},
		{"no such resolv.conf", "upstreams: {external: [DIR/missing]}\n", []string{"DIR/missing"}},
		{"resolv.conf with a bad server", "upstreams: {external: [DIR/bad-nameserver]}\n", []string{"DIR/bad-nameserver:2", "10.0.0.300"}},
		{"snippet's argument", "snippets: {\".\": rewrite name}\n", []string{"node.yaml:", "rewrite"}},
		{"Corefile with an unknown plugin", "corefile: DIR/unknown-plugin\n", []string{"DIR/unknown-plugin:2", "nonsense"}},
		{"unclosed Corefile", "corefile: DIR/unclosed\n", []string{"DIR/unclosed:2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n.configure(strings.ReplaceAll(tc.config, "DIR", n.dir))
			for _, verb := range [][]string{{"config", "check"}, {"node"}} {
				code, _, stderr := n.run(append(verb, "--config", n.configFile())...)
				if code != 2 {
					t.Errorf("%v: exit code %d, want 2", verb, code)
				}
				var errs []string
				for line := range strings.Lines(stderr) {
					if !strings.HasPrefix(line, "time=") {
						errs = append(errs, line)
					}
				}
				if len(errs) != 1 || strings.Contains(stderr, "level=ERROR") {
					t.Errorf("%v: %d errors, want one:\n%s", verb, len(errs), stderr)
				}
				for _, name := range tc.names {
					if name := strings.ReplaceAll(name, "DIR", n.dir); !strings.Contains(strings.Join(errs, ""), name) {
						t.Errorf("%v: %q is not named:\n%s", verb, name, stderr)
					}
				}
			}
		})
	}
	testutil.Equal(t, "the node was changed", before, n.static())
	if left := n.files(); len(left) > 1 || len(left) == 1 && !strings.HasSuffix(left[0], "/agent.lock") {
		t.Errorf("files were left: %v", left)
	}
}
