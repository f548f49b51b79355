package zoneserver_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

const page = "../../../docs/shared-zones-servers.md"

var drawn = flag.Bool("update", false, "draw the blocks and the table of docs/shared-zones-servers.md")

// languages of the document's blocks, by a file's ending.
var languages = map[string]string{"named.conf": "conf", "knot.conf": "yaml", "pdns.conf": "conf", "shared-zone.lua": "lua", "pdns.sh": "sh"}

// The document shows the very files that these tests run the servers with.
func TestDocumentedConfiguration(t *testing.T) {
	zone, err := zoneserver.ExampleZone()
	if err != nil {
		t.Fatal(err)
	}
	hold(t, "shared.example.zone", "```conf\n"+zone+"```\n")
	for _, kind := range zoneserver.Kinds() {
		parts, err := zoneserver.Example(kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			hold(t, p.Name, "```"+languages[p.Name]+"\n"+p.Text+"```\n")
		}
	}
}

// hold compares a drawn part of the document, between two comments that name it, with what it should be.
func hold(t *testing.T, name, want string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), "<!-- "+name+" -->\n")
	got, tail, closed := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	if !ok || !closed {
		t.Fatalf("%s has no place for %s", page, name)
	}
	if *drawn {
		text := head + "<!-- " + name + " -->\n" + want + "<!-- end of " + name + " -->\n" + tail
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: %s is not as it should be: run this test with -update (-want +got):\n%s", page, name, d)
	}
}
