package clustermanifests

import (
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func TestBase(t *testing.T) {
	objects := decode(t, "base", render(t, "base"))
	equal(t, "objects", 3, len(objects))
	set := the[*appsv1.DaemonSet](t, objects)
	pod := set.Spec.Template.Spec
	equal(t, "service account", the[*corev1.ServiceAccount](t, objects).Name, pod.ServiceAccountName)
	wantHandOver(t, set)
	wantCapabilities(t, pod.InitContainers[1], "DAC_OVERRIDE", "CHOWN")
	wantCapabilities(t, pod.Containers[0], "BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "NET_RAW", "NET_BIND_SERVICE")
	wantCapabilities(t, pod.Containers[1], "DAC_OVERRIDE", "CHOWN", "NET_ADMIN", "NET_RAW")
	wantNobody(t, pod.InitContainers[0])
	for _, c := range []corev1.Container{pod.InitContainers[1], pod.Containers[0], pod.Containers[1]} {
		if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "NODE_IP" && e.ValueFrom.FieldRef.FieldPath == "status.hostIP"
		}) {
			t.Errorf("%s: no NODE_IP, which the configuration may name", c.Name)
		}
	}
}

// wantHandOver checks what two agents side by side on one node need: that they may be, that each is queried by itself, and
// that the newer one is known.
func wantHandOver(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	agent := pod.Containers[0]
	if u := set.Spec.UpdateStrategy.RollingUpdate; u == nil || u.MaxSurge.String() != "10%" || u.MaxUnavailable.String() != "0" {
		t.Errorf("update strategy: %+v", set.Spec.UpdateStrategy)
	}
	own := agent.Args[slices.IndexFunc(agent.Args, func(a string) bool { return strings.HasPrefix(a, "--pod-dir=") })]
	mount := agent.VolumeMounts[slices.IndexFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return "--pod-dir="+m.MountPath == own })]
	if v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })]; v.EmptyDir == nil {
		t.Errorf("%s is %+v, which does not live as long as the pod", own, v.VolumeSource)
	}
	if p := agent.ReadinessProbe; p == nil || p.Exec == nil || !slices.Contains(p.Exec.Command, own) {
		t.Errorf("readiness does not ask this pod's agent by itself: %+v", p)
	}
	// While two hand over, the address is the old one's; the new one has until then to be queried there.
	if p := agent.LivenessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Host != "127.0.0.1" || p.HTTPGet.Path != "/healthz" || p.InitialDelaySeconds < 45 {
		t.Errorf("liveness does not ask on the loopback: %+v", p)
	}
	if g := *pod.TerminationGracePeriodSeconds; g < 12 {
		t.Errorf("%d s are too short for a hand-over (5 s) and open connections (7 s)", g)
	}
}

// The agent takes every NodeConfig, and the liveness probe requests the health address that `config show` prints.
func TestNodeConfigs(t *testing.T) {
	checked := 0
	for _, name := range kustomizations(t) {
		objects := decode(t, name, render(t, name))
		for _, m := range all[*corev1.ConfigMap](objects) {
			text, ok := m.Data["nodeconfig.yaml"]
			if !ok {
				continue
			}
			checked++
			t.Run(name, func(t *testing.T) {
				shown := show(t, text)
				for _, set := range all[*appsv1.DaemonSet](objects) {
					if p := set.Spec.Template.Spec.Containers[0].LivenessProbe; p != nil {
						equal(t, "where the agent listens", net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String()), shown.Listen.Health)
					}
				}
			})
		}
	}
	if checked < 7 {
		t.Errorf("%d NodeConfigs found", checked)
	}
}

// The programs take the flags of the manifests. Those that read a configuration get no further, since there is none.
func TestFlagsAreKnown(t *testing.T) {
	known, state := 0, t.TempDir()
	for _, name := range []string{"base", "uninstall"} {
		pod := the[*appsv1.DaemonSet](t, decode(t, name, render(t, name))).Spec.Template.Spec
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			program := "neardns-agent"
			if slices.Contains(c.Command, "/bin/neardns-install") || strings.HasPrefix(c.Image, "neardns/neardns-plugin") {
				program = "neardns-install"
			}
			args := slices.Clone(c.Args)
			for i, a := range args { // what the watch writes before it reads is not for this machine
				args[i] = strings.NewReplacer("/run/neardns", state, "/run/pod", state).Replace(a)
			}
			if p := c.ReadinessProbe; p != nil {
				probe := p.Exec.Command[1:]
				if out, code := run(t, "neardns-agent", nil, probe...); code != 3 || !strings.Contains(out, "no agent runs") {
					t.Errorf("%v exits with %d: %s", probe, code, out)
				}
			}
			want, text := 2, "/etc/neardns/nodeconfig.yaml"
			switch c.Name {
			case "copy": // it finds nothing to copy here
				args = []string{args[0], "--from=" + t.TempDir(), "--to=" + t.TempDir(), "--once"}
				want, text = 0, ""
			case "done": // it waits; an argument too many shows that its word is known
				args = append(args, "now")
				text = `unexpected argument "now"`
			case "entry": // it needs no configuration, and finds no network here
				args = append(args, "--dry-run", "--cni-bin="+t.TempDir(), "--cni-conf="+t.TempDir())
				want, text = 0, ""
			}
			if out, code := run(t, program, nil, args...); code != want || !strings.Contains(out, text) {
				t.Errorf("%s %v exits with %d, want %d and %q: %s", program, args, code, want, text, out)
			}
			known++
		}
	}
	equal(t, "command lines tried", 7, known)
}

// TestKubectlRights: the reader reads, and only the operator has pods/exec, which its text calls root.
func TestKubectlRights(t *testing.T) {
	const file = install + "/kubectl-rbac.yaml"
	text := readFile(t, file)
	objects := decode(t, file, text)
	of := func(name string) []string {
		kept := slices.DeleteFunc(slices.Clone(objects), func(o runtime.Object) bool { return o.(metav1.Object).GetName() != name })
		return rights(the[*rbacv1.ClusterRole](t, kept), kept)
	}
	equal(t, "the reader", []string{"cluster: list nodes", "kube-system: get pods/proxy", "kube-system: list pods"}, of("neardns-reader"))
	want := []string{"cluster: get pods", "cluster: list networking.k8s.io/networkpolicies", "kube-system: get pods/log", "kube-system: get,create pods/exec"}
	equal(t, "the operator", want, of("neardns-operator"))
	if len(objects) != 4 || !strings.Contains(text, "EQUALS ROOT ON EVERY NODE") {
		t.Errorf("%d objects, or no warning of what pods/exec is", len(objects))
	}
}

// TestClusterwidePolicies: each sample is an object of another engine, and names the addresses and the port that the NetworkPolicy has.
// That of Cilium names no address.
func TestClusterwidePolicies(t *testing.T) {
	text := readFile(t, install+"/allow-steering-clusterwide.yaml")
	one := readFile(t, install+"/allow-steering-networkpolicy.yaml")
	addresses := regexp.MustCompile(`(169\.254\.20\.1[01]/32|fd00:90de:d95::[ab]/128)`).FindAllString(one, -1)
	var kinds []string
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var object metav1.PartialObjectMetadata
		var whole map[string]any
		must(t, errors.Join(yaml.Unmarshal([]byte(doc), &object), yaml.UnmarshalStrict([]byte(doc), &whole)))
		kinds = append(kinds, object.APIVersion+" "+object.Kind)
		for _, address := range addresses {
			if object.Kind != "CiliumClusterwideNetworkPolicy" && !strings.Contains(doc, address) {
				t.Errorf("%s lacks %s", object.Kind, address)
			}
		}
		if object.Name != "allow-neardns" || !strings.Contains(doc, "53") || len(addresses) != 4 {
			t.Errorf("%s %s, addresses %v", object.Kind, object.Name, addresses)
		}
	}
	want := []string{"policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy", "cilium.io/v2 CiliumClusterwideNetworkPolicy", "projectcalico.org/v3 GlobalNetworkPolicy"}
	equal(t, "kinds", want, kinds)
}

// The policy opens what the agent listens on by default, and nothing else.
func TestNetworkPolicy(t *testing.T) {
	const file = install + "/allow-steering-networkpolicy.yaml"
	text := readFile(t, file)
	policy := the[*networkingv1.NetworkPolicy](t, decode(t, file, text))
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
	// What the agent takes by itself, as it shows it.
	s := show(t, "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10, \"fd00::a\"]\n")
	want := s.LocalAddresses
	for _, r := range s.Redirects {
		want = append(want, r.Steering)
	}
	for _, address := range want {
		if !slices.ContainsFunc(got, func(cidr string) bool { return strings.HasPrefix(cidr, address+"/") }) {
			t.Errorf("%s is not let through: %v", address, got)
		}
	}
	if len(got) != 4 || len(want) != 4 {
		t.Errorf("%d addresses, want the two steering and the two local ones: %v", len(got), got)
	}
}
