package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// A release's images reach a registry with both architectures, and the files that name them name what is there.
func TestPush(t *testing.T) {
	testutil.RequireRoot(t)
	address := serveRegistry(t)
	r := release{version: "v0.1.0", out: t.TempDir(), work: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	for _, i := range r.list() {
		layout := writeLayout(t, i)
		testutil.Must(t, nameLayout(layout, i))
		testutil.Must(t, r.packLayout(filepath.Join(r.out, i.archive()), layout))
	}
	to := address + "/dns"
	testutil.Must(t, r.run(t.Context(), nil, to, true))

	for file, names := range map[string][]string{
		"values.yaml": {"neardns-agent", "neardns-plugin"}, "fleet-values.yaml": {"neardns-agent", "neardns-controller", "neardns-edge"},
		"images/kustomization.yaml": {"neardns-agent", "neardns-controller", "neardns-edge", "neardns-plugin"},
	} {
		text, err := os.ReadFile(filepath.Join(r.out, file))
		testutil.Must(t, err)
		for _, name := range names {
			digest, architectures := pulled(t, address, name, "v0.1.0")
			if !strings.Contains(string(text), digest) || !strings.Contains(string(text), to) {
				t.Errorf("%s does not name %s of %s:\n%s", file, digest, name, text)
			}
			if architectures != 2 {
				t.Errorf("%s has %d architectures in the registry", name, architectures)
			}
		}
	}
	if _, n := pulled(t, address, "neardns-agent", "v0.1.0-slim"); n != 2 {
		t.Error("the slim image is not there")
	}
}

func TestPushRefuses(t *testing.T) {
	r := release{version: "v0.1.0", out: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	for to, want := range map[string]string{"https://registry.example": "without a scheme", "registry.example/dns": "make release VERSION=v0.1.0"} {
		testutil.WantError(t, r.run(t.Context(), nil, to, false), want, to)
	}
}

// The name by which containerd imports an image is in the layout, and nothing else of it changes.
func TestNameLayout(t *testing.T) {
	i := image{name: "neardns-agent", tag: "v0.1.0"}
	layout := writeLayout(t, i)
	for range 2 {
		testutil.Must(t, nameLayout(layout, i))
	}
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil || strings.Count(string(text), `"io.containerd.image.name":"docker.io/neardns/neardns-agent:v0.1.0"`) != 1 ||
		!strings.Contains(string(text), `"org.opencontainers.image.ref.name":"v0.1.0"`) || !strings.Contains(string(text), `"schemaVersion":2`) {
		t.Errorf("%s %v", text, err)
	}
}

// writeLayout makes an OCI layout of an image without files for two architectures, as podman does.
func writeLayout(t *testing.T, i image) string {
	t.Helper()
	dir := t.TempDir()
	blob := func(v any, mediaType string) map[string]any {
		text, err := json.Marshal(v)
		testutil.Must(t, err)
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		testutil.WriteFile(t, filepath.Join(dir, "blobs/sha256", sum), string(text))
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(text)}
	}
	const oci = "application/vnd.oci.image."
	var manifests []map[string]any
	for _, arch := range architectures {
		config := blob(map[string]any{"architecture": arch, "os": "linux", "config": map[string]any{"Labels": map[string]string{"of": i.name + i.tag}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{}}}, oci+"config.v1+json")
		m := blob(map[string]any{"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []any{}}, oci+"manifest.v1+json")
		m["platform"] = map[string]string{"architecture": arch, "os": "linux"}
		manifests = append(manifests, m)
	}
	index := blob(map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": manifests}, oci+"index.v1+json")
	index["annotations"] = map[string]string{"org.opencontainers.image.ref.name": i.tag}
	top, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{index}})
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "index.json"), top, 0o644))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	return dir
}

// serveRegistry runs a registry on the loopback while the test runs.
func serveRegistry(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	address = l.Addr().String()
	testutil.Must(t, l.Close())
	conf := filepath.Join(t.TempDir(), "conf.yaml")
	testutil.Must(t, os.WriteFile(conf, []byte(fmt.Sprintf("{version: 0.1, storage: {filesystem: {rootdirectory: %s}}, http: {addr: %q}}", t.TempDir(), address)), 0o644))
	cmd := exec.Command("docker-registry", "serve", conf)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	testutil.Eventually(t, func() error {
		answer, err := http.Get("http://" + address + "/v2/")
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
	return address
}

// pulled is an image's digest in the registry, and how many architectures it has.
func pulled(t *testing.T, address, name, tag string) (digest string, architectures int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/v2/dns/%s/manifests/%s", address, name, tag), nil)
	testutil.Must(t, err)
	request.Header.Set("Accept", "application/vnd.oci.image.index.v1+json")
	answer, err := http.DefaultClient.Do(request)
	testutil.Must(t, err)
	defer func() { _ = answer.Body.Close() }()
	var index struct{ Manifests []any }
	if err := json.NewDecoder(answer.Body).Decode(&index); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	return answer.Header.Get("Docker-Content-Digest"), len(index.Manifests)
}
