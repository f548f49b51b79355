package podfile

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

func dnsSample() *DNS {
	return &DNS{
		State: Overlaid, Method: MethodFile, Path: "/run/sandboxes/abc/resolv.conf",
		Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local"}, Options: []string{"ndots:1"}},
		Overlay:  &resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"ndots:1"}}},
		Notes:    []resolvconf.Note{{Code: resolvconf.UnknownOption, Text: "x"}},
	}
}

func TestDNSIsKept(t *testing.T) {
	dir := t.TempDir()
	yes := true
	want := sample("abc", "eth0")
	want.DNS, want.KernelHits = dnsSample(), &yes
	want.Ignored = []Ignored{{What: "annotation neardns.io/steer", Why: "maybe is neither true nor false"}}
	testutil.Must(t, Write(dir, want))
	got, err := Read(Path(dir, "abc", "eth0"))
	testutil.Must(t, err)
	if d := cmp.Diff(want, got, cmpAddr); d != "" {
		t.Errorf("read differs from written (-want +got):\n%s", d)
	}
}

func TestResolver(t *testing.T) {
	given := sample("abc", "eth0")
	overlaid := given
	overlaid.DNS = dnsSample()
	unknown := File{DNS: &DNS{State: AsGiven}}
	for _, tc := range []struct {
		name    string
		file    File
		options string
		known   bool
	}{
		{"of an older plugin", given, "ndots:5", true},
		{"overlaid", overlaid, "ndots:1", true},
		{"unknown", unknown, "", false},
		{"nothing at all", File{}, "", false},
	} {
		s, known := tc.file.Resolver()
		if strings.Join(s.Options, " ") != tc.options || known != tc.known {
			t.Errorf("%s: options %q, known %v", tc.name, s.Options, known)
		}
	}
}

// An agent reads the file of a newer plugin with the same format version. It ignores unknown fields, and refuses unknown values.
func TestUnknownFieldsAndValues(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, old, new, want string
	}{
		{"a field of a newer plugin", `"state": "overlaid"`, `"state": "overlaid", "mood": {"is": ["good"]}`, ""},
		{"an unknown state", `"state": "overlaid"`, `"state": "baked"`, `unknown state "baked"`},
		{"an unknown lever", `"lever": "file"`, `"lever": "crowbar"`, `unknown lever "crowbar"`},
	} {
		f := sample("abc", "eth0")
		f.DNS = dnsSample()
		testutil.Must(t, Write(dir, f))
		path := Path(dir, "abc", "eth0")
		data, err := os.ReadFile(path)
		testutil.Must(t, err)
		changed := strings.Replace(string(data), tc.old, tc.new, 1)
		if changed == string(data) || !json.Valid([]byte(changed)) {
			t.Fatalf("%s: the file has no %s", tc.name, tc.old)
		}
		testutil.Must(t, os.WriteFile(path, []byte(changed), 0o600))
		_, err = Read(path)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
