// Package generated holds what controller-gen makes of the API's types to these types. It imports none of them, so that it can make again
// what does not compile any more.
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

// The definitions of NodeDNS, DNSZone, DNSRecord and DNSPolicy, and the types' DeepCopy functions, are what controller-gen makes of the
// types now.
func TestGenerated(t *testing.T) {
	var makeCRD genall.Generator = crd.Generator{}
	var makeCopy genall.Generator = deepcopy.Generator{}
	made := memory{}
	for _, generator := range []*genall.Generator{&makeCRD, &makeCopy} {
		runtime, err := genall.Generators{generator}.ForRoots("github.com/neardns/neardns/fleet/api/v1alpha1")
		if err != nil {
			t.Fatal(err)
		}
		runtime.OutputRules = genall.OutputRules{Default: made}
		if runtime.Run() {
			t.Fatal("the types cannot be read; the reason is above")
		}
	}
	for file, parts := range map[string][]string{
		"../../../fleet/install/placement/crd.yaml": {"neardns.io_nodedns.yaml"},
		"../../../fleet/install/zones/crd.yaml": {
			"neardns.io_dnszones.yaml", "neardns.io_dnsrecords.yaml", "neardns.io_dnspolicies.yaml",
		},
		"../../../fleet/api/v1alpha1/zz_generated.deepcopy.go": {"zz_generated.deepcopy.go"},
	} {
		var text string
		for _, part := range parts {
			if made[part] == nil {
				t.Fatalf("nothing made %s", part)
			}
			// The version is of the program that links the generator: here, of no release.
			text += strings.Replace(made[part].String(), "  annotations:\n    controller-gen.kubebuilder.io/version: (devel)\n", "", 1)
			delete(made, part)
		}
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if old, err := os.ReadFile(file); err != nil || string(old) != text {
			t.Errorf("%s is not what the types give now (make update-golden rewrites it): %v", file, err)
		}
	}
	for part := range made {
		t.Errorf("%s has no place", part)
	}
}

// memory takes the files that generators write, by name.
type memory map[string]*file

func (m memory) Open(_ *loader.Package, name string) (io.WriteCloser, error) {
	m[name] = &file{}
	return m[name], nil
}

type file struct{ bytes.Buffer }

func (*file) Close() error { return nil }
