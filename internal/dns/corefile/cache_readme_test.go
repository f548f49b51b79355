package corefile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestCacheREADME: the cache's README has the blocks as they are rendered.
func TestCacheREADME(t *testing.T) {
	text := testutil.ReadFile(t, "../cache/README.md")
	c := Cache{Entries: 10000, NegativeTTL: 5 * time.Second, ServeStale: time.Hour} // config.Default's
	for zone, w := range map[string]origin{"cluster.local": ofCluster, ".": fromOthers} {
		var want strings.Builder
		for _, line := range cacheLines(c, w) {
			want.WriteString("    " + line + "\n")
		}
		if !strings.Contains(text, zone+" {\n"+want.String()+"}\n") {
			t.Errorf("README.md does not show what is rendered:\n%s", want.String())
		}
	}
}

// TestREADMENamesThePlugins: the README lists the directives that an operator's Corefile may have. Five directives are the agent's own.
func TestREADMENamesThePlugins(t *testing.T) {
	_, after, _ := strings.Cut(testutil.ReadFile(t, "README.md"), "\nPlugins that may be used: ")
	list, _, _ := strings.Cut(after, ".\n")
	got := strings.Fields(strings.ReplaceAll(list, ",", " "))
	want := slices.DeleteFunc(slices.Sorted(slices.Values(directives())), func(d string) bool {
		return slices.Contains([]string{dirBind, dirProbe, dirMetrics, dirLimit, dirShared}, d)
	})
	testutil.Equal(t, "plugins in README.md", want, got)
}
