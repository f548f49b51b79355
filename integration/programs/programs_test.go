package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// set makes the programs of a set in a folder of its own.
func set(t *testing.T, names ...string) *Set {
	t.Helper()
	s := Of(names...)
	s.dir = t.TempDir()
	return s
}

func TestBuilds(t *testing.T) {
	t.Setenv(built, "")
	s := set(t, "neardns")
	for range 2 {
		testutil.Must(t, s.make())
	}
	cmd := exec.CommandContext(t.Context(), s.Path("neardns"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "supportedVersions") {
		t.Errorf("%v: %s", err, out)
	}
	if found, err := os.ReadDir(s.Dir()); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

// What make built is taken, and the rest is built.
func TestTakesWhatIsBuilt(t *testing.T) {
	made := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(made, "neardns-agent"), []byte("an agent"), 0o755))
	t.Setenv(built, made)
	s := set(t, "neardns-agent", "neardns")
	testutil.Must(t, s.make())
	if text, err := os.ReadFile(s.Path("neardns-agent")); err != nil || string(text) != "an agent" {
		t.Errorf("%q, %v", text, err)
	}
	if st, err := os.Stat(s.Path("neardns")); err != nil || st.Size() < 1e6 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestUnknown(t *testing.T) {
	s := set(t, "nothing")
	first := s.make()
	if first == nil || !strings.Contains(first.Error(), "nothing is neither a product nor a tool") {
		t.Errorf("%v", first)
	}
	if again := s.make(); again == nil || again.Error() != first.Error() {
		t.Errorf("the error does not stay: %v", again)
	}
}

// Outside of the repository there is nothing to build.
func TestElsewhere(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := set(t, "neardns").make(); err == nil || !strings.Contains(err.Error(), "not in the repository") {
		t.Errorf("%v", err)
	}
}
