package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
	program, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(t, map[string][]byte{"podimage": program})
	config := encode(t, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/podimage"}, "Cmd": []string{"pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	name := digest(config) + ".json"
	image := archive(t, map[string][]byte{
		name: config, "layer.tar": layer,
		"manifest.json": encode(t, []any{map[string]any{"Config": name, "RepoTags": []string{podImage}, "Layers": []string{"layer.tar"}}}),
	})
	path := filepath.Join(dir, "pod.tar")
	if err := os.WriteFile(path, image, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
