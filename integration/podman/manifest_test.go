//go:build images

package podman

import (
	"os"
	"slices"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifest is as much of a DaemonSet as reports how its containers are confined.
type manifest struct {
	Spec struct {
		Template struct {
			Spec struct {
				InitContainers, Containers []struct {
					Name            string
					SecurityContext struct {
						ReadOnlyRootFilesystem bool
						Capabilities           struct{ Add, Drop []string }
					}
				}
			}
		}
	}
}

var read = sync.OnceValues(func() (map[string][]string, error) {
	out := map[string][]string{}
	for _, name := range []string{"base", "uninstall"} {
		text, err := os.ReadFile("../../install/" + name + "/daemonset.yaml")
		if err != nil {
			return nil, err
		}
		var m manifest
		if err := yaml.Unmarshal(text, &m); err != nil {
			return nil, err
		}
		for _, c := range slices.Concat(m.Spec.Template.Spec.InitContainers, m.Spec.Template.Spec.Containers) {
			if s := c.SecurityContext; s.ReadOnlyRootFilesystem && slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				out[name+"/"+c.Name] = s.Capabilities.Add
			}
		}
	}
	return out, nil
})

// capabilitiesOf are what the manifests give a container: the tests run it with these and no other, and with one of them less.
func capabilitiesOf(t *testing.T, name string) []string {
	t.Helper()
	all, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if len(all[name]) == 0 {
		t.Fatalf("no container %s in install/ that has a read-only root and drops all capabilities but some", name)
	}
	return slices.Clone(all[name])
}
