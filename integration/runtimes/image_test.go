package runtimes

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/neardns/neardns/integration/image"
	"github.com/neardns/neardns/pkg/testutil"
)

// podImage is the name of the one image that the tests need, as pod and as the sandbox's own.
const podImage = "neardns.test/pod:1"

// buildImage writes a docker-archive with the static podimage program in it and returns its path: no registry is queried.
func buildImage(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "podimage")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./podimage")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the pods' program: %v\n%s", err, out)
	}
	archive, err := os.Create(filepath.Join(dir, "pod.tar"))
	testutil.Must(t, err)
	testutil.Must(t, image.Image{Name: podImage, Files: map[string]string{"podimage": bin}, Entrypoint: []string{"/podimage"}, Cmd: []string{"pause"}}.Write(archive))
	testutil.Must(t, archive.Close())
	return archive.Name()
}
