package clustermanifests

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/integration/compat"
)

// The role hosts has a DaemonSet, a configuration and ports of its own, no capability, and of the host's folders /etc and /run/neardns.
func TestHostsDaemonSet(t *testing.T) {
	compat.Say(t, "hosts", "rights", "root without any capability, and no token")
	text := render(t, "hosts")
	golden(t, "testdata/hosts.yaml", text)
	objects := decode(t, "hosts", text)
	equal(t, "objects: DaemonSet and ConfigMap", 2, len(objects))
	pod := the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) > 0 || pod.ServiceAccountName != "" {
		t.Fatalf("%d containers, %d before them, account %q", len(pod.Containers), len(pod.InitContainers), pod.ServiceAccountName)
	}
	c := pod.Containers[0]
	wantCapabilities(t, c)
	if s := c.SecurityContext; *s.RunAsUser != 0 || *s.AllowPrivilegeEscalation {
		t.Errorf("security context %+v", s)
	}
	var host []string
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			host = append(host, v.HostPath.Path)
		}
	}
	equal(t, "it mounts", []string{"/etc", "/run/neardns"}, host)
	// Next to the agent on the node's network.
	mine, base := show(t, nodeConfig(t, "hosts")).Listen, show(t, nodeConfig(t, "base")).Listen
	if mine.Health == base.Health || mine.Metrics == base.Metrics {
		t.Errorf("it listens where the agent does: %+v", mine)
	}
	if out, code := run(t, "neardns-agent", nil, c.Args...); code != 2 {
		t.Errorf("%v exits with %d: %s", c.Args, code, out)
	}
	for _, m := range all[*corev1.ConfigMap](objects) {
		if m.Name == "neardns" {
			t.Error("it shares the agent's ConfigMap")
		}
	}
}
