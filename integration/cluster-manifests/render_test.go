package clustermanifests

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const install = "../../install"

var update = flag.Bool("update", false, "rewrite install/neardns.yaml and the golden files")

// fleet are the parts that are below fleet/install, and not below install.
var fleet = []string{"edge", "placement", "primary", "zones"}

// folder is where a kustomization is, from the repository's top.
func folder(name string) string {
	if first, _, _ := strings.Cut(name, "/"); slices.Contains(fleet, first) {
		return "fleet/install/" + name
	}
	return "install/" + name
}

// render does what `kubectl kustomize FOLDER` does, with its defaults: nothing outside the folder's tree but other
// kustomizations, no plugins.
func render(t *testing.T, name string) string {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), filepath.Join("../..", folder(name)))
	if err != nil {
		t.Fatalf("render %s: %v", folder(name), err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatalf("render %s: %v", folder(name), err)
	}
	return string(text)
}

// kustomizations are all folders of install/ and fleet/install/ that can be applied.
func kustomizations(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, root := range []string{install, "../../fleet/install"} {
		for _, pattern := range []string{"*/kustomization.yaml", "*/*/kustomization.yaml"} {
			files, err := filepath.Glob(filepath.Join(root, pattern))
			must(t, err)
			for _, f := range files {
				name, err := filepath.Rel(root, filepath.Dir(f))
				must(t, err)
				out = append(out, name)
			}
		}
	}
	if len(out) < 6 || !slices.Contains(out, "base") {
		t.Fatalf("too few kustomizations found: %v", out)
	}
	return out
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails the test, which goes on, if got differs from want.
func equal[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// golden compares text with a file, or rewrites the file.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	want := readFile(t, file)
	if want != text {
		t.Errorf("%s is not what the manifests give now (make update-golden rewrites it):\n%s", file, diff(t, want, text))
	}
}
