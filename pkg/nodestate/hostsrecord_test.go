package nodestate

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestHosts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, ok, err := HostsFile(dir).Read(); ok || err != nil {
		t.Errorf("before any: %v %v", ok, err)
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	want := Hosts{Since: now, Looked: now.Add(time.Minute), Repairs: 4, Fighting: true,
		Services: []HostsService{{Name: "shop/registry", Addresses: []string{"10.96.0.5"}, Answered: now}, {Name: "a/b", Failed: "why"}}}
	testutil.Must(t, HostsFile(dir).Write(want))
	got, ok, err := HostsFile(dir).Read()
	if d := cmp.Diff(want, got); !ok || err != nil || d != "" {
		t.Errorf("read %v %v (-want +got):\n%s", ok, err, d)
	}
	for range 2 {
		testutil.Must(t, HostsFile(dir).Remove())
	}
}
