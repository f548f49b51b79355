// Package generated holds what controller-gen makes of the API's types to these types. It imports none of them, so that it can make anew what
// does not compile any more.
package generated

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/deepcopy"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"
)

var update = flag.Bool("update", false, "write the files")

// The definition of NodeDNS and the types' DeepCopy functions are what controller-gen makes of the types now.
func TestGenerated(t *testing.T) {
	var makeCRD genall.Generator = crd.Generator{}
	var makeCopy genall.Generator = deepcopy.Generator{}
	for file, generator := range map[string]*genall.Generator{
		"../../../install/placement/crd.yaml":                  &makeCRD,
		"../../../agent/api/v1alpha1/zz_generated.deepcopy.go": &makeCopy,
	} {
		runtime, err := genall.Generators{generator}.ForRoots("github.com/neardns/neardns/agent/api/v1alpha1")
		if err != nil {
			t.Fatal(err)
		}
		var out memory
		runtime.OutputRules = genall.OutputRules{Default: &out}
		if runtime.Run() {
			t.Fatal("the types cannot be read; the reason is above")
		}
		// The version is of the program that links the generator: here, of no release.
		text := strings.Replace(out.String(), "  annotations:\n    controller-gen.kubebuilder.io/version: (devel)\n", "", 1)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if old, err := os.ReadFile(file); err != nil || string(old) != text {
			t.Errorf("%s is not what the types give now (make update-golden rewrites it): %v", file, err)
		}
	}
}

// memory takes the one file that a generator writes.
type memory struct{ bytes.Buffer }

func (m *memory) Open(*loader.Package, string) (io.WriteCloser, error) { return m, nil }
func (m *memory) Close() error                                         { return nil }
