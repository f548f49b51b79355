package programs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/neardns/neardns/pkg/testutil"
)

var topLevelKey = regexp.MustCompile(`^\w+:`)

// NodeConfig is the NodeConfig of a new installation (install/base), with the keys of more in place of its own. It does not connect to the
// machine's container runtime, whose pods the agent would adopt.
func NodeConfig(t testutil.TB, more string) string {
	t.Helper()
	root, err := top()
	if err != nil {
		t.Fatalf("find install/base: %v", err)
	}
	base, err := os.ReadFile(filepath.Join(root, "install/base/nodeconfig.yaml"))
	if err != nil {
		t.Fatalf("read the default NodeConfig: %v", err)
	}
	var out strings.Builder
	replaced := false
	for line := range strings.Lines(string(base) + "resolvConf: {nri: \"off\"}\n") {
		if key := topLevelKey.FindString(line); key != "" {
			replaced = strings.Contains("\n"+more, "\n"+key)
		}
		if !replaced {
			out.WriteString(line)
		}
	}
	return out.String() + more
}
