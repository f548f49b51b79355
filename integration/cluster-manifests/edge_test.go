package clustermanifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// An edge is open to the world: it has port 53, its zones and nothing else of the node.
func TestEdge(t *testing.T) {
	text := render(t, "edge")
	golden(t, "testdata/edge.yaml", text)
	objects := decode(t, "edge", text)
	equal(t, "objects: StatefulSet, Service, PodDisruptionBudget and ConfigMap", 4, len(objects))
	set := the[*appsv1.StatefulSet](t, objects)
	pod := set.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) > 0 || pod.HostNetwork || pod.HostPID || *pod.AutomountServiceAccountToken {
		t.Fatalf("%+v", pod)
	}
	c := pod.Containers[0]
	wantCapabilities(t, c, "NET_BIND_SERVICE")
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Privileged != nil ||
		!cmp.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security context %+v", s)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("it mounts %s of the node", v.HostPath.Path)
		}
	}
	service := the[*corev1.Service](t, objects)
	if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || !cmp.Equal(service.Spec.Selector, set.Spec.Template.Labels) {
		t.Errorf("%+v", service.Spec)
	}
	file := filepath.Join(t.TempDir(), "edgeconfig.yaml")
	must(t, os.WriteFile(file, []byte(the[*corev1.ConfigMap](t, objects).Data["edgeconfig.yaml"]), 0o600))
	env := []string{"POD_IP=10.0.0.7", "POD_IPS=10.0.0.7,fd00::7"}
	if out, code := run(t, "neardns-edge", env, "--check", "--config="+file); code != 0 || !strings.Contains(out, "good") {
		t.Errorf("neardns-edge refuses it: %s", out)
	}
	if out, code := run(t, "neardns-edge", nil, "--check", "--config="+file); code != 2 || !strings.Contains(out, "POD_IP") {
		t.Errorf("without the pod's addresses it exits with %d: %s", code, out)
	}
}
