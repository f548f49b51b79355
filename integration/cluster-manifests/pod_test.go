package clustermanifests

import (
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// wantOnNodes checks what a pod needs that works on a node itself, on every one.
func wantOnNodes(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	equal(t, "selector and labels", set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	equal(t, "the namespace that has KUBE_DNS_SERVICE_HOST and the ConfigMap kube-dns", "kube-system", set.Namespace)
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault || pod.PriorityClassName != "system-node-critical" {
		t.Errorf("hostNetwork %v, dnsPolicy %v, priority class %q", pod.HostNetwork, pod.DNSPolicy, pod.PriorityClassName)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("it gets a token for the API server, which it never asks")
	}
	equal(t, "tolerations", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations)
	equal(t, "node selector's operating system", "linux", pod.NodeSelector["kubernetes.io/os"])
	if p := pod.SecurityContext; p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp: %+v", p.SeccompProfile)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if len(c.Ports) > 0 {
			t.Errorf("%s lists ports: on the host's network the scheduler then puts no second pod on the node", c.Name)
		}
	}
}

// wantConfined checks what holds for each container: nothing more than it needs, and a bound on memory.
func wantConfined(t *testing.T, c corev1.Container) {
	t.Helper()
	s := c.SecurityContext
	if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Privileged != nil {
		t.Fatalf("%s: security context %+v", c.Name, s)
	}
	equal(t, c.Name+" drops", []corev1.Capability{"ALL"}, s.Capabilities.Drop)
	// The API server refuses the one with the other.
	if admin := slices.Contains(s.Capabilities.Add, "SYS_ADMIN"); admin == (s.AllowPrivilegeEscalation != nil) {
		t.Errorf("%s: allowPrivilegeEscalation %v beside capabilities %v", c.Name, s.AllowPrivilegeEscalation, s.Capabilities.Add)
	}
	if c.Resources.Limits.Memory().IsZero() || !c.Resources.Limits.Cpu().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("%s: resources %+v", c.Name, c.Resources)
	}
}

// wantNobody checks a container that reads or does nothing which takes a right.
func wantNobody(t *testing.T, c corev1.Container) {
	t.Helper()
	s := c.SecurityContext
	user := s.RunAsUser == nil && strings.Contains(c.Image, "controller") || s.RunAsUser != nil && *s.RunAsUser != 0
	if !user || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || len(s.Capabilities.Add) > 0 {
		t.Errorf("%s: security context %+v", c.Name, s)
	}
}

func wantCapabilities(t *testing.T, c corev1.Container, add ...corev1.Capability) {
	t.Helper()
	equal(t, c.Name+": capabilities", add, c.SecurityContext.Capabilities.Add)
}

// wantMounts checks that each mount has its volume, that the flags name folders which are mounted, and that no file is mounted
// which others replace: such a mount would keep the old one.
func wantMounts(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			t.Errorf("%s mounts %s, which is no volume", c.Name, m.Name)
			continue
		}
		if m.SubPath != "" {
			t.Errorf("%s mounts %s by subPath, which does not follow changes", c.Name, m.Name)
		}
		// The installer reads its file once; a file that a program follows has to be mounted by its folder.
		if h := pod.Volumes[at].HostPath; h != nil && m.Name != "kubelet" && *h.Type != corev1.HostPathDirectory && *h.Type != corev1.HostPathDirectoryOrCreate && h.Path != "/run/xtables.lock" {
			t.Errorf("%s mounts %s, which is no folder", c.Name, h.Path)
		}
	}
	mounted := func(p string) bool {
		for ; p != "/"; p = path.Dir(p) {
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == p }) {
				return true
			}
		}
		return false
	}
	// --from and --host-root stand for the host's root, of which only folders are there.
	below := func(p string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.MountPath, p+"/") })
	}
	for _, arg := range c.Args {
		if _, value, ok := strings.Cut(arg, "=/"); ok && !mounted("/"+value) && !((strings.HasPrefix(arg, "--from=") || strings.HasPrefix(arg, "--host-root=")) && below("/"+value)) {
			t.Errorf("%s: %s is not mounted", c.Name, arg)
		}
	}
}
