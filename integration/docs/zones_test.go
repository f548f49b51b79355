package docs

import (
	"strings"
	"testing"
)

// The objects of fleet/docs/shared-zones.md are the samples that the API server is tried with.
func TestZonesSamples(t *testing.T) {
	text := read(t, "fleet/docs/shared-zones.md")
	for _, name := range []string{"fleet/conf/dnszone.yaml", "fleet/conf/dnsrecord.yaml"} {
		_, object, _ := strings.Cut(read(t, name), "\napiVersion")
		if !strings.Contains(text, "```yaml\napiVersion"+object+"```") {
			t.Errorf("fleet/docs/shared-zones.md does not show %s as it is", name)
		}
	}
}
