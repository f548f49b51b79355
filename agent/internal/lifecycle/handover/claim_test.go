package handover

import (
	"os"
	"testing"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestBirth(t *testing.T) {
	dir := t.TempDir()
	first, err := Birth(dir)
	if err != nil || first <= 0 {
		t.Fatal(first, err)
	}
	again, err := Birth(dir)
	if err != nil || again != first {
		t.Errorf("born anew: %d, then %d, %v", first, again, err)
	}
	other, err := Birth(t.TempDir())
	if err != nil || other <= first {
		t.Errorf("a later pod: %d after %d, %v", other, first, err)
	}
	if own, err := Birth(""); err != nil || own <= other {
		t.Errorf("no folder: %d after %d, %v", own, other, err)
	}
	// From another boot, or malformed.
	for _, text := range []string{`{"boot": "1f0e-other-boot", "born": 5}`, "nonsense", "", "{}"} {
		testutil.Must(t, os.WriteFile(nodestate.BirthFile(dir).Path, []byte(text), 0o600))
		if now, err := Birth(dir); err != nil || now <= first {
			t.Errorf("%q: %d after %d, %v", text, now, first, err)
		}
	}
	loop := t.TempDir()
	testutil.Must(t, os.Symlink("born", nodestate.BirthFile(loop).Path))
	if _, err := Birth(loop); err == nil {
		t.Error("a file that cannot be read")
	}
	if _, err := Birth("/dev/null"); err == nil {
		t.Error("a folder that cannot be written")
	}
}

func TestClaimInWords(t *testing.T) {
	testutil.Equal(t, "String", "process 8 (version v2, since 2001-09-09T01:47:40Z, pod neardns-x7k2p)", newer.String())
}

func TestOver(t *testing.T) {
	for _, tc := range []struct {
		name string
		c, h Claim
		ok   bool
	}{
		{"newer", newer, older, true},
		{"older", older, newer, false},
		{"as old", Claim{Instance: "twin", Born: 100}, older, false},
		{"older, but told", Claim{Instance: "x", Born: 1, TakeOver: true}, newer, true},
		{"itself", Claim{Instance: "older", Born: 300, TakeOver: true}, older, false},
	} {
		if err := tc.c.CheckTakeover(tc.h); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
