package main

import (
	"bytes"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/steer"
)

// decode reads the objects of a manifest as an API server that validates strictly does: an unknown or doubled field is an
// error.
func decode(t *testing.T, file string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []runtime.Object
	for i, doc := range bytes.Split(text, []byte("\n---\n")) {
		object, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%s, document %d: %v", file, i+1, err)
		}
		out = append(out, object)
	}
	return out
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	at := slices.IndexFunc(objects, func(o runtime.Object) bool { _, ok := o.(T); return ok })
	if at < 0 {
		t.Fatalf("no %T", *new(T))
	}
	return objects[at].(T)
}

func TestManifest(t *testing.T) {
	objects := decode(t, "neardns.yaml")
	if len(objects) != 3 {
		t.Errorf("%d objects, want 3", len(objects))
	}
	set := find[*appsv1.DaemonSet](t, objects)
	pod := set.Spec.Template.Spec
	if d := cmp.Diff(set.Spec.Selector.MatchLabels, set.Spec.Template.Labels); d != "" {
		t.Errorf("selector and labels differ:\n%s", d)
	}
	if pod.ServiceAccountName != find[*corev1.ServiceAccount](t, objects).Name {
		t.Errorf("service account %q is not there", pod.ServiceAccountName)
	}
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault || pod.PriorityClassName != "system-node-critical" {
		t.Errorf("hostNetwork %v, dnsPolicy %v, priority class %q", pod.HostNetwork, pod.DNSPolicy, pod.PriorityClassName)
	}
	if d := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); d != "" {
		t.Errorf("tolerations (-want +got):\n%s", d)
	}
	wantHandOver(t, set)
	wantCapabilities(t, pod.InitContainers[0], "DAC_OVERRIDE", "CHOWN", "FOWNER")
	wantCapabilities(t, pod.Containers[1], "DAC_OVERRIDE", "CHOWN", "FOWNER")
	wantCapabilities(t, pod.Containers[0], "NET_ADMIN", "SYS_ADMIN", "NET_RAW", "NET_BIND_SERVICE")
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		wantMounts(t, pod, c)
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "NODE_IP" && e.ValueFrom.FieldRef.FieldPath == "status.hostIP"
		}) {
			t.Errorf("%s: no NODE_IP, which the configuration may name", c.Name)
		}
	}
}

// wantHandOver checks what two agents side by side on one node need: that they may be, that each is asked by itself, and
// that the newer one is known.
func wantHandOver(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	agent := pod.Containers[0]
	if u := set.Spec.UpdateStrategy.RollingUpdate; u == nil || u.MaxSurge.String() != "10%" || u.MaxUnavailable.String() != "0" {
		t.Errorf("update strategy: %+v", set.Spec.UpdateStrategy)
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		if len(c.Ports) > 0 {
			t.Errorf("%s lists ports: on the host's network the scheduler then puts no second pod on the node", c.Name)
		}
	}
	own := agent.Args[slices.IndexFunc(agent.Args, func(a string) bool { return strings.HasPrefix(a, "--pod-dir=") })]
	mount := agent.VolumeMounts[slices.IndexFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return "--pod-dir="+m.MountPath == own })]
	if v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })]; v.EmptyDir == nil {
		t.Errorf("%s is %+v, which does not live as long as the pod", own, v.VolumeSource)
	}
	for name, p := range map[string]*corev1.Probe{"readiness": agent.ReadinessProbe, "liveness": agent.LivenessProbe} {
		if p.Exec == nil || !slices.Contains(p.Exec.Command, own) {
			t.Errorf("%s does not ask this pod's agent by itself: %+v", name, p.ProbeHandler)
		}
	}
	if g := *pod.TerminationGracePeriodSeconds; g < 12 {
		t.Errorf("%d s are too short for a hand-over (5 s) and open connections (7 s)", g)
	}
}

func wantCapabilities(t *testing.T, c corev1.Container, add ...corev1.Capability) {
	t.Helper()
	if d := cmp.Diff(&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: add}, c.SecurityContext.Capabilities); d != "" {
		t.Errorf("%s: capabilities (-want +got):\n%s", c.Name, d)
	}
	// The API server refuses the one with the other.
	if e := c.SecurityContext.AllowPrivilegeEscalation; e != nil && !*e && slices.Contains(add, "SYS_ADMIN") {
		t.Errorf("%s: SYS_ADMIN with allowPrivilegeEscalation: false", c.Name)
	}
}

// wantMounts checks that each mount has its volume, and that the flags name folders which are mounted.
func wantMounts(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("%s mounts %s, which is no volume", c.Name, m.Name)
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
	for _, arg := range c.Args {
		if _, value, ok := strings.Cut(arg, "=/"); ok && !mounted("/"+value) {
			t.Errorf("%s: %s is not mounted", c.Name, arg)
		}
	}
}

// The installer takes the flags of the manifest. It gets no further than the missing configuration.
func TestManifestsFlagsAreKnown(t *testing.T) {
	pod := find[*appsv1.DaemonSet](t, decode(t, "neardns.yaml")).Spec.Template.Spec
	n := newNode(t)
	for _, c := range []corev1.Container{pod.InitContainers[0], pod.Containers[1]} {
		code, out := n.run(c.Args...)
		want(t, code, 2, out, "/etc/neardns/nodeconfig.yaml")
	}
}

// The NodeConfig inside is text to Kubernetes. Its keys are held against the sample that names each of them, which the
// agent's own reader is tested on.
func TestManifestsNodeConfig(t *testing.T) {
	text := find[*corev1.ConfigMap](t, decode(t, "neardns.yaml")).Data["nodeconfig.yaml"]
	full, err := os.ReadFile("../conf/nodeconfig-full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got, known map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(full, &known); err != nil {
		t.Fatal(err)
	}
	if got["apiVersion"] != known["apiVersion"] || got["kind"] != known["kind"] {
		t.Errorf("it is a %v of %v", got["kind"], got["apiVersion"])
	}
	wantKnownKeys(t, "", got, known)
}

func wantKnownKeys(t *testing.T, at string, got, known map[string]any) {
	t.Helper()
	for key, value := range got {
		sample, ok := known[key]
		if !ok {
			t.Errorf("%s%s is no key of NodeConfig", at, key)
			continue
		}
		if inner, ok := value.(map[string]any); ok {
			if sample, ok := sample.(map[string]any); ok {
				wantKnownKeys(t, at+key+".", inner, sample)
			}
		}
	}
}

// The policy opens what the agent listens on by default, and nothing else.
func TestNetworkPolicy(t *testing.T) {
	policy := find[*networkingv1.NetworkPolicy](t, decode(t, "allow-steering-networkpolicy.yaml"))
	if len(policy.Spec.PodSelector.MatchLabels) == 0 {
		t.Error("it selects every pod, and would take all other egress from those that no policy restricts")
	}
	if len(policy.Spec.Egress) != 1 || len(policy.Spec.Egress[0].Ports) != 2 {
		t.Fatalf("egress: %+v", policy.Spec.Egress)
	}
	var got []string
	for _, peer := range policy.Spec.Egress[0].To {
		got = append(got, peer.IPBlock.CIDR)
	}
	redirects := []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10")}, {ClusterDNS: netip.MustParseAddr("fd00::a")}}
	complete, err := steer.Complete(redirects)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range complete {
		if !slices.ContainsFunc(got, func(cidr string) bool { return strings.HasPrefix(cidr, r.Steering.String()+"/") }) {
			t.Errorf("%s is not let through: %v", r.Steering, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d addresses, want the two steering and the two local ones: %v", len(got), got)
	}
}
