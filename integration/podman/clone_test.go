//go:build images

package podman

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// With a builder that has Go, each Dockerfile builds from a plain clone. The builder here is the same Debian, with this machine's Go,
// modules and compiled packages, and make, as golang's image has them.
func TestPlainClone(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", "--no-hardlinks", "../..", clone).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	// The files as they are now, also where they are not committed.
	for _, name := range []string{"Dockerfile.agent", "Dockerfile.plugin", "fleet/Dockerfile", ".dockerignore"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		testutil.Must(t, err)
		testutil.Must(t, os.WriteFile(filepath.Join(clone, name), text, 0o644))
	}
	volumes := []string{"--volume", "/usr/bin/make:/usr/bin/make:ro"}
	for variable, path := range map[string]string{"GOROOT": "/usr/local/go:ro", "GOMODCACHE": "/root/go/pkg/mod", "GOCACHE": "/root/.cache/go-build"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", variable).Output()
		testutil.Must(t, err)
		volumes = append(volumes, "--volume", strings.TrimSpace(string(out))+":"+path)
	}
	const base = "localhost/neardns-base:bookworm" // integration/tools/images'
	for _, test := range []struct{ file, target, program string }{
		{"fleet/Dockerfile", "controller", "neardns-controller"},
		{"fleet/Dockerfile", "edge", "neardns-edge"},
		{"Dockerfile.agent", "agent", "neardns-agent"},
		{"Dockerfile.plugin", "", "neardns-install"},
	} {
		name := "localhost/" + test.program + ":clone"
		args := append([]string{"build", "-q", "--network=none"}, volumes...)
		args = append(args, "--build-arg=BUILDER="+base, "--build-arg=BASE="+base, "-t", name, "-f", filepath.Join(clone, test.file))
		if test.target != "" {
			args = append(args, "--target", test.target)
		}
		if out, err := podman(append(args, clone)...); err != nil {
			t.Fatalf("%s: %v\n%s", test.file, err, out)
		}
		run := container{image: name, command: []string{"version"}}.args(t)
		out, err := exec.CommandContext(t.Context(), run[0], run[1:]...).CombinedOutput()
		if err != nil || !strings.HasPrefix(strings.TrimSpace(string(out)), test.program+" ") {
			t.Errorf("%s: %v\n%s", test.program, err, out)
		}
	}
}
