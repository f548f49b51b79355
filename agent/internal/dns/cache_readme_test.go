package dns

import (
	"os"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/config"
)

// TestCacheREADME holds the blocks that the cache's README shows against what is rendered.
func TestCacheREADME(t *testing.T) {
	text, err := os.ReadFile("../coredns/cache/README.md")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default().Cache
	for zone, w := range map[string]whose{"cluster.local": ofCluster, ".": fromOthers} {
		var want strings.Builder
		for _, line := range cacheLines(Cache{Entries: c.Entries, NegativeTTL: c.NegativeTTL, ServeStale: c.ServeStale}, w) {
			want.WriteString("    " + line + "\n")
		}
		if !strings.Contains(string(text), zone+" {\n"+want.String()+"}\n") {
			t.Errorf("README.md does not show what is rendered:\n%s", want.String())
		}
	}
}
