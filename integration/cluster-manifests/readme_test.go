package clustermanifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// The overlay that README.md shows is one that works, for the products and for taking them off.
func TestReadmesOverlay(t *testing.T) {
	text := overlayBelow(t, "## Manifests")
	const config = "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nkubeProxyMode: ipvs\n"
	ours := mine(t, map[string]string{"kustomization.yaml": text, "nodeconfig.yaml": config})
	objects := decode(t, "README's overlay", ours)
	equal(t, "the NodeConfig", config, the[*corev1.ConfigMap](t, objects).Data["nodeconfig.yaml"])
	pod := the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if !strings.HasPrefix(c.Image, "registry.example/neardns-") || !strings.HasSuffix(c.Image, ":v0.1.0") {
			t.Errorf("%s runs %s", c.Name, c.Image)
		}
	}
	wantFolders(t, pod)

	// The same for ../uninstall, which has neither plugin image nor the ConfigMap.
	text = strings.Replace(text, "../overlays/ipvs", "../uninstall", 1)
	text = strings.Replace(text, "{name: neardns, behavior", "{name: neardns-uninstall, behavior", 1)
	pod = the[*appsv1.DaemonSet](t, decode(t, "an overlay of uninstall", mine(t, map[string]string{"kustomization.yaml": text, "nodeconfig.yaml": config}))).Spec.Template.Spec
	wantFolders(t, pod)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		equal(t, c.Name+" runs", "registry.example/neardns-agent:v0.1.0", c.Image)
	}
}

// The overlays of the guides render: one of your own takes your registry and NodeConfig, and that of a rollout chooses nodes by a label.
func TestGuidesOverlays(t *testing.T) {
	guide := func(page, heading string, files map[string]string) *appsv1.DaemonSet {
		text := overlayIn(t, "../docs/"+page, heading)
		if !strings.Contains(text, "[../neardns/install/base]") {
			t.Fatalf("docs/%s shows no overlay of the base below %q:\n%s", page, heading, text)
		}
		files["kustomization.yaml"] = strings.Replace(text, "../neardns/install/base", "../base", 1)
		return the[*appsv1.DaemonSet](t, decode(t, page, mine(t, files)))
	}
	own := guide("install-and-configure.md", "## Your own overlay", map[string]string{"nodeconfig.yaml": "kind: NodeConfig\n"})
	for _, c := range slices.Concat(own.Spec.Template.Spec.InitContainers, own.Spec.Template.Spec.Containers) {
		if !strings.HasPrefix(c.Image, "registry.example/dns/neardns-") {
			t.Errorf("%s runs %s", c.Name, c.Image)
		}
	}
	selector := guide("rollout.md", "## Prepare", map[string]string{"nodeconfig.yaml": "kind: NodeConfig\n"}).Spec.Template.Spec.NodeSelector
	equal(t, "the rollout's nodes are chosen by", map[string]string{"kubernetes.io/os": "linux", "neardns.io/rollout": "on"}, selector)
}

// overlayBelow is the first overlay below a heading of install/README.md.
func overlayBelow(t *testing.T, heading string) string {
	t.Helper()
	return overlayIn(t, "README.md", heading)
}

// overlayIn is the first overlay below a heading of a page; it may be part of a list.
func overlayIn(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, headed := strings.Cut(readFile(t, filepath.Join(install, page)), "\n"+heading+"\n")
	before, text, ok := strings.Cut(text, "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	if !headed || !ok || !closed {
		t.Fatalf("%s shows no overlay below %q", page, heading)
	}
	indent := before[strings.LastIndex(before, "\n")+1:]
	return strings.ReplaceAll("\n"+text, "\n"+indent, "\n")
}

// The overlay for another name of CoreDNS's ConfigMap changes that name and nothing else.
func TestReadmesCorefile(t *testing.T) {
	pod := the[*appsv1.DaemonSet](t, decode(t, "README's overlay", mine(t, map[string]string{"kustomization.yaml": overlayBelow(t, "## Names outside of the cluster")}))).Spec.Template.Spec
	base := the[*appsv1.DaemonSet](t, decode(t, "base", render(t, "base"))).Spec.Template.Spec
	volume := func(p corev1.PodSpec) *corev1.ConfigMapVolumeSource {
		i := slices.IndexFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == "kube-dns-corefile" })
		if i < 0 || p.Volumes[i].ConfigMap == nil || p.Volumes[i].ConfigMap.Optional == nil || !*p.Volumes[i].ConfigMap.Optional {
			t.Fatalf("no optional ConfigMap kube-dns-corefile: %+v", p.Volumes)
		}
		return p.Volumes[i].ConfigMap
	}
	if was, is := volume(base).Name, volume(pod).Name; was != "coredns" || is != "rke2-coredns-rke2-coredns" || len(pod.Volumes) != len(base.Volumes) {
		t.Errorf("ConfigMap %s, after the patch %s; %d volumes, before %d", was, is, len(pod.Volumes), len(base.Volumes))
	}
}

func wantFolders(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	found := 0
	for _, v := range pod.Volumes {
		if v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, "/var/lib/rancher/k3s/") {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d folders of the runtime are set, want two: %+v", found, pod.Volumes)
	}
}

// mine renders a folder with these files that lies next to those of install/.
func mine(t *testing.T, files map[string]string) string {
	t.Helper()
	memory := filesys.MakeFsInMemory()
	write := func(path string, text []byte) {
		t.Helper()
		must(t, memory.WriteFile(path, text))
	}
	err := filepath.WalkDir(install, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(install, path)
		write(filepath.Join("/install", name), text)
		return err
	})
	must(t, err)
	for name, text := range files {
		write(filepath.Join("/install/mine", name), []byte(text))
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, "/install/mine")
	must(t, err)
	text, err := resources.AsYaml()
	must(t, err)
	return string(text)
}
