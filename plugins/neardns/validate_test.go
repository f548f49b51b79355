package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestValidate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.conf*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".want") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			var out, errs bytes.Buffer
			code := validate(file, &out, &errs)
			golden.File(t, file+".want", fmt.Sprintf("exit %d\n%s%s", code, out.String(), errs.String()))
		})
	}
}

func TestCLI(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"validate", "testdata/good.conflist"}, 0, "good.conflist: good\n"},
		{[]string{"validate", "testdata/none.conflist"}, 2, "no such file"},
		{[]string{"validate", "testdata"}, 2, "is a directory"},
		{[]string{"validate"}, 2, "usage"},
		{[]string{"frobnicate"}, 2, "usage"},
		{[]string{"help"}, 0, "usage"},
		{[]string{"validate", "--help"}, 0, "usage"},
		{[]string{"help", "validate"}, 0, "usage"},
		{[]string{"version"}, 0, "\n"},
	} {
		var out bytes.Buffer
		if code := cli(tc.args, &out, &out); code != tc.code || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: exit %d, %s", tc.args, code, out.String())
		}
	}
}

// The plugin accepts the entry that the installer renders.
func TestTakesTheRenderedEntry(t *testing.T) {
	entry, err := conflist.Entry(conflist.Settings{
		Redirects: []steer.Redirect{redirect4, redirect6}, ClusterDomain: "corp.example", LocalAddresses: addrs("169.254.20.10"),
		Backend: "nftables", Steer: conflist.SteerAlways, StateDir: "/run/x", PersistDir: "/var/y",
	})
	testutil.Must(t, err)
	c := mustConf(t, entry)
	testutil.Equal(t, "redirects", []steer.Redirect{redirect4, redirect6}, c.Redirects)
	if c.Steer != conflist.SteerAlways || c.StateDir != "/run/x" || c.PersistDir != "/var/y" || c.ClusterDomain != "corp.example" || len(c.Locals) != 1 {
		t.Errorf("%+v", c)
	}
}

// The examples in README.md and docs/pod-dns.md are valid, and README.md describes each key.
func TestReadme(t *testing.T) {
	var text string
	for file, examples := range map[string]int{"README.md": 3, "../../docs/pod-dns.md": 1} {
		page, err := os.ReadFile(file)
		testutil.Must(t, err)
		blocks := strings.Split(string(page), "```json\n")[1:]
		if len(blocks) != examples {
			t.Errorf("%s: %d examples", file, len(blocks))
		}
		for i, b := range blocks {
			b, _, _ = strings.Cut(b, "```")
			if r := checkList([]byte(b)); len(r.Faults)+len(r.Warnings) > 0 {
				t.Errorf("%s: example %d: %v %v", file, i+1, r.Faults, r.Warnings)
			}
		}
		if file == "README.md" {
			text = string(page)
		}
	}
	for _, key := range ownKeys {
		if !strings.Contains(text, "| `"+key+"` |") {
			t.Errorf("key %s is not described", key)
		}
	}
}

func FuzzValidate(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.conf*")
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(data)
		}
	}
	f.Add([]byte(`{"name": "n", "name": "n", "plugins": [], "plugins": []}`))
	f.Add([]byte("{\"cniVersion\": {\n}, \"name\": \"n\", \"plugins\": [{\"type\": \"neardns\"}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f.conflist")
		testutil.Must(t, os.WriteFile(path, data, 0o600))
		var out, errs bytes.Buffer
		code := validate(path, &out, &errs)
		if code == 0 && !strings.Contains(out.String(), "good") || code == 2 && errs.Len() == 0 || code != 0 && code != 2 {
			t.Fatalf("exit %d, %q, %q", code, out.String(), errs.String())
		}
		for line := range strings.Lines(errs.String()) {
			if !strings.HasPrefix(line, path+": ") {
				t.Fatalf("no file in %q", line)
			}
		}
	})
}
