package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// registry is where images go: a host, with a port or not, and a path.
var registry = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*$`)

// push copies the images of a release that was made to a registry, and writes their names, by digest, next to them: values.yaml and
// fleet-values.yaml for the charts, images/kustomization.yaml as a component for kustomize. insecure is for a registry without TLS.
func (r *release) push(ctx context.Context, to string, insecure bool) error {
	if !registry.MatchString(to) {
		return fmt.Errorf("registry %q is none: name one such as registry.example/dns, without a scheme", to)
	}
	digests := map[string]string{} // by name; the agent's is of the image with iptables
	for _, i := range r.list() {
		archive := filepath.Join(r.out, i.archive())
		if _, err := os.Stat(archive); err != nil {
			return fmt.Errorf("%w: make the release first: make release VERSION=%s", err, r.version)
		}
		file, err := os.CreateTemp("", "digest")
		if err != nil {
			return err
		}
		r.log.Info("push", "image", i.name, "tag", i.tag, "to", to)
		_, err = command(ctx, r.out, nil, "skopeo", "copy", "-q", "--all", "--preserve-digests", fmt.Sprintf("--dest-tls-verify=%v", !insecure),
			"--digestfile="+file.Name(), "oci-archive:"+archive, fmt.Sprintf("docker://%s/%s:%s", to, i.name, i.tag))
		digest, failed := os.ReadFile(file.Name())
		if err = errors.Join(err, failed, file.Close(), os.Remove(file.Name())); err != nil {
			return err
		}
		if i.tag == r.version {
			digests[i.name] = strings.TrimSpace(string(digest))
		}
	}
	for name, text := range r.imageNames(to, digests) {
		path := filepath.Join(r.out, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
		r.log.Info("written", "file", path)
	}
	return nil
}

// imageNames renders the files that name pushed images.
func (r *release) imageNames(to string, digests map[string]string) map[string]string {
	values := func(names ...string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "image:\n  registry: %s\n  tag: %s\n  digests:\n", to, r.version)
		for _, name := range names {
			fmt.Fprintf(&b, "    %s: %s\n", name, digests[name])
		}
		return b.String()
	}
	var component strings.Builder
	component.WriteString("apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nimages:\n")
	for _, name := range []string{"neardns-agent", "neardns-controller", "neardns-edge", "neardns-plugin"} {
		fmt.Fprintf(&component, "- {name: neardns/%s, newName: %s/%[1]s, digest: \"%[3]s\"}\n", name, to, digests[name])
	}
	return map[string]string{
		"values.yaml":               values("neardns-agent", "neardns-plugin"),
		"fleet-values.yaml":         values("neardns-agent", "neardns-controller", "neardns-edge"),
		"images/kustomization.yaml": component.String(),
	}
}

// nameLayout writes into an OCI layout the name by which containerd, and with it kind and k3s, imports its image. Without one an import
// needs --base-name.
func nameLayout(layout string, i image) error {
	path := filepath.Join(layout, "index.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var index struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType,omitempty"`
		Manifests     []map[string]any `json:"manifests"`
	}
	if err := json.Unmarshal(text, &index); err != nil || len(index.Manifests) != 1 {
		return fmt.Errorf("%s has %d images, not one: %w", path, len(index.Manifests), err)
	}
	index.Manifests[0]["annotations"] = map[string]string{
		"io.containerd.image.name":          "docker.io/neardns/" + i.name + ":" + i.tag,
		"org.opencontainers.image.ref.name": i.tag,
	}
	if text, err = json.Marshal(index); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
