package dns

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestCacheREADME holds the blocks that the cache's README shows against what is rendered.
func TestCacheREADME(t *testing.T) {
	text, err := os.ReadFile("../coredns/cache/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for zone, w := range map[string]whose{"cluster.local": ofCluster, ".": fromOthers} {
		var want strings.Builder
		for _, line := range cacheLines(Cache{Entries: defaultEntries, NegativeTTL: defaultNegativeTTL, ServeStale: time.Hour}, w) {
			want.WriteString("    " + line + "\n")
		}
		if !strings.Contains(string(text), zone+" {\n"+want.String()+"}\n") {
			t.Errorf("README.md does not show what is rendered:\n%s", want.String())
		}
	}
}
