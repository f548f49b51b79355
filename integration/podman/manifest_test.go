//go:build images

package podman

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
)

// capabilitiesOf are what the manifests give a container: the tests run it with these and no other, and with one of them less.
func capabilitiesOf(t *testing.T, name string) []string {
	t.Helper()
	set, container, _ := strings.Cut(name, "/")
	text, err := os.ReadFile("../../install/" + set + "/daemonset.yaml")
	testutil.Must(t, err)
	var d appsv1.DaemonSet
	testutil.Must(t, yaml.Unmarshal(text, &d))
	var out []string
	for _, c := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		if s := c.SecurityContext; c.Name == container && *s.ReadOnlyRootFilesystem && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			for _, capability := range s.Capabilities.Add {
				out = append(out, string(capability))
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("no container %s in install/ that has a read-only root and drops all capabilities but some", name)
	}
	return out
}
