package clustermanifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// head stands before what is rendered of the base, for those who apply one file.
const head = `# neardns on every node, in one file: kubectl apply -f neardns.yaml
#
# This is what kubectl kustomize install/base prints; the comments there have the reasons. make update-golden writes it. Before:
# see that kube-proxy (or what stands for it) runs on the nodes. After: pods that start from then on are steered, and
# those that run, five a second on each node (adoptPods). To remove: kubectl delete -f neardns.yaml, then kubectl apply -k
# install/uninstall. Deleting alone leaves rules that send every query to kube-dns: DNS works, uncached.
`

// The single file is the base, so that there are not two of them to keep.
func TestSingleFile(t *testing.T) {
	golden(t, install+"/neardns.yaml", head+render(t, "base"))
}

// Each overlay changes of the base what its golden file shows, and nothing else.
func TestOverlays(t *testing.T) {
	base := render(t, "base")
	overlays := 0
	for _, name := range kustomizations(t) {
		overlay, ok := strings.CutPrefix(name, "overlays/")
		if !ok {
			continue
		}
		overlays++
		t.Run(overlay, func(t *testing.T) {
			changes := diff(t, base, render(t, name))
			if changes == "" {
				t.Error("it changes nothing")
			}
			golden(t, "testdata/"+overlay+".diff", changes)
		})
	}
	if overlays < 8 {
		t.Errorf("%d overlays, there should be eight", overlays)
	}
}

// What the golden files show as text is what the agent takes it for.
func TestOverlaysMean(t *testing.T) {
	for _, mode := range []string{"iptables", "ipvs", "nftables"} {
		equal(t, "kube-proxy's mode", mode, show(t, nodeConfig(t, "overlays/"+mode)).KubeProxyMode)
	}
	if s := show(t, nodeConfig(t, "overlays/dual-stack")); len(s.Redirects) != 2 || len(s.Upstreams.Cluster) != 2 {
		t.Errorf("dual-stack: %+v", s)
	}
	for overlay, means := range map[string]func(shown) bool{
		"second-kube-dns":     func(s shown) bool { return s.InterceptNode && !s.Link.ClusterDNSOnLink },
		"cluster-dns-on-link": func(s shown) bool { return !s.InterceptNode && s.Link.ClusterDNSOnLink },
	} {
		// The agent queries the second Service, by the name of which Kubernetes makes its variable.
		service := the[*corev1.Service](t, decode(t, overlay, render(t, "overlays/"+overlay)))
		variable := strings.ToUpper(strings.ReplaceAll(service.Name, "-", "_")) + "_SERVICE_HOST"
		text := nodeConfig(t, "overlays/"+overlay)
		if s := show(t, text); !means(s) || !slices.Equal(s.Upstreams.Cluster, []string{"10.96.0.99:53"}) && !slices.Equal(s.Upstreams.Cluster, []string{"10.96.0.99"}) {
			t.Errorf("%s: %+v", overlay, s)
		}
		if !strings.Contains(text, "${"+variable+"}") || service.Namespace != "kube-system" || len(service.Spec.Ports) != 2 || len(service.Spec.Selector) == 0 {
			t.Errorf("%s: %s is not asked for in\n%s\n%+v", overlay, variable, text, service.Spec)
		}
	}
}

// The enhancement writes the second Service out; the overlay has the same one.
func TestServiceOfTheEnhancement(t *testing.T) {
	service := the[*corev1.Service](t, decode(t, "cluster-dns-on-link", render(t, "overlays/cluster-dns-on-link")))
	labels := map[string]string{
		"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "addonmanager.kubernetes.io/mode": "Reconcile", "kubernetes.io/name": "NodeLocalUpstream",
	}
	if service.Name != "node-local-upstream" || !maps.Equal(service.Labels, labels) || !maps.Equal(service.Spec.Selector, map[string]string{"k8s-app": "kube-dns"}) {
		t.Errorf("%+v", service)
	}
	for i, want := range []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}} {
		equal(t, fmt.Sprintf("port %d", i), want, service.Spec.Ports[i])
	}
}

func nodeConfig(t *testing.T, name string) string {
	t.Helper()
	return the[*corev1.ConfigMap](t, decode(t, name, render(t, name))).Data["nodeconfig.yaml"]
}
