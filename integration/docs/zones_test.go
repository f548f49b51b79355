package docs

import (
	"strings"
	"testing"
)

// The objects of the pages about shared zones are the samples that the API server is tried with.
func TestZonesSamples(t *testing.T) {
	for name, page := range map[string]string{
		"fleet/conf/dnszone.yaml":   "fleet/docs/shared-zones.md",
		"fleet/conf/dnsrecord.yaml": "fleet/docs/shared-zones.md",
		"fleet/conf/dnspolicy.yaml": "fleet/docs/gateways.md",
	} {
		text := read(t, page)
		_, object, _ := strings.Cut(read(t, name), "\napiVersion")
		if !strings.Contains(text, "```yaml\napiVersion"+object+"```") {
			t.Errorf("%s does not show %s as it is", page, name)
		}
	}
}
