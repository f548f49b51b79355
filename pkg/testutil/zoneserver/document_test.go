package zoneserver_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

const page = "../../../fleet/docs/shared-zones-servers.md"

// languages of the document's blocks, by a file's ending.
var languages = map[string]string{"named.conf": "conf", "knot.conf": "yaml", "pdns.conf": "conf", "shared-zone.lua": "lua", "pdns.sh": "sh"}

// The document shows the very files that these tests run the servers with.
func TestDocumentedConfiguration(t *testing.T) {
	zone, err := zoneserver.ExampleZone()
	testutil.Must(t, err)
	golden.Part(t, page, "shared.example.zone", "```conf\n"+zone+"```\n")
	for _, kind := range zoneserver.Kinds() {
		parts, err := zoneserver.Example(kind)
		testutil.Must(t, err)
		for _, p := range parts {
			golden.Part(t, page, p.Name, "```"+languages[p.Name]+"\n"+p.Text+"```\n")
		}
	}
}
