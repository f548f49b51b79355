package clustermanifests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/platform"
)

// The two charts: the cache's, and the one of the parts for fleets.
const (
	nodeChart  = "../../install/chart"
	fleetChart = "../../fleet/install/chart"
)

// chartWith is the chart that has a kustomization.
func chartWith(name string) string {
	if strings.HasPrefix(folder(name), "fleet/") {
		return fleetChart
	}
	return nodeChart
}

// change is an operation of RFC 6902.
type change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// overlay is what the chart has of an overlay: what it adds to the base.
type overlay struct {
	Changes    []change         `json:"changes,omitempty"`
	NodeConfig string           `json:"nodeConfig"`
	Resources  []map[string]any `json:"resources,omitempty"`
}

// parts are the kustomizations that the charts have whole; overlays are in the cache's by what they change.
var parts = []string{"base", "uninstall", "hosts", "placement", "zones", "edge",
	"monitoring", "hosts/monitoring", "placement/monitoring", "placement/cluster-dns", "zones/monitoring", "edge/monitoring"}

const generated = "# Rendered from %s by make update-golden.\n"

// The charts' files are what kubectl kustomize renders: there are not two of them to keep.
func TestChartFiles(t *testing.T) {
	for _, name := range parts {
		golden(t, filepath.Join(chartWith(name), "files", name+".yaml"), strings.ReplaceAll(generated, "%s", folder(name))+render(t, name))
	}
	table := map[string]platform.Platform{}
	for _, p := range platform.All() {
		table[p.Name] = p
	}
	text, err := yaml.Marshal(table)
	must(t, err)
	for _, chart := range []string{nodeChart, fleetChart} {
		golden(t, filepath.Join(chart, "files/platforms.yaml"), strings.ReplaceAll(generated, "%s", "pkg/platform")+string(text))
	}
	// What both charts do with each object has one source.
	golden(t, fleetChart+"/templates/_objects.tpl", readFile(t, nodeChart+"/templates/_objects.tpl"))
	golden(t, filepath.Join(nodeChart, "files/dashboard.json"), readFile(t, "../../conf/grafana-dashboard.json"))
	for _, name := range kustomizations(t) {
		name, ok := strings.CutPrefix(name, "overlays/")
		// The one is in placement, the other has no program of ours.
		if !ok && !slices.Contains(append(parts, "placement/left", "primary"), name) {
			t.Errorf("no chart has a part for %s", folder(name))
		}
		if ok {
			text, err := yaml.Marshal(overlayOf(t, name))
			must(t, err)
			golden(t, filepath.Join(nodeChart, "files", "overlays", name+".yaml"), strings.ReplaceAll(generated, "%s", "install/overlays/"+name)+string(text))
		}
	}
}

// overlayOf reads an overlay's kustomization. What the chart could not do is an error.
func overlayOf(t *testing.T, name string) (o overlay) {
	t.Helper()
	dir := filepath.Join(install, "overlays", name)
	var k types.Kustomization
	read(t, filepath.Join(dir, "kustomization.yaml"), &k)
	if len(k.ConfigMapGenerator) != 1 || k.ConfigMapGenerator[0].Name != "neardns" || len(k.Labels)+len(k.Components) > 0 {
		t.Fatalf("overlay %s does what the chart cannot", name)
	}
	for _, p := range k.Patches {
		var changes []change
		must(t, yaml.UnmarshalStrict([]byte(p.Patch), &changes))
		for _, c := range changes {
			switch {
			case c.Op == "test":
			case (c.Op == "add" || c.Op == "remove") && p.Target.Kind == "DaemonSet" && p.Target.Name == "neardns":
				o.Changes = append(o.Changes, c)
			default:
				t.Fatalf("overlay %s: the chart cannot %s", name, c.Op)
			}
		}
	}
	o.NodeConfig = readFile(t, filepath.Join(dir, "nodeconfig.yaml"))
	for _, r := range k.Resources {
		if r != "../../base" {
			object := map[string]any{}
			read(t, filepath.Join(dir, r), &object)
			object["metadata"].(map[string]any)["namespace"] = k.Namespace
			o.Resources = append(o.Resources, object)
		}
	}
	return o
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(readFile(t, file)), into))
}

// helm does what `helm template neardns CHART --namespace NAMESPACE --set …` does.
func helm(t *testing.T, folder, namespace string, values map[string]any) string {
	t.Helper()
	text, err := tryHelm(t, folder, namespace, values)
	must(t, err)
	return text
}

func tryHelm(t *testing.T, folder, namespace string, values map[string]any) (string, error) {
	t.Helper()
	c, err := loader.LoadDir(folder)
	must(t, err)
	release := chartutil.ReleaseOptions{Name: "neardns", Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, chartutil.DefaultCapabilities) // checks the schema, too
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && !strings.Contains(name, "/tests/") {
			text.WriteString(files[name])
		}
	}
	return strings.TrimPrefix(strings.TrimSpace(text.String()), "---\n"), nil
}

// The charts give the objects that kustomize gives, field by field, for the base, each overlay, and each other part.
func TestChart(t *testing.T) {
	type values = map[string]any
	enabled := values{"enabled": true}
	cases := map[string]struct {
		values         values
		kustomizations []string
	}{
		"base":        {nil, []string{"base"}},
		"uninstall":   {values{"uninstall": true, "hosts": enabled, "monitoring": enabled}, []string{"uninstall"}},
		"all":         {values{"hosts": enabled, "monitoring": enabled}, []string{"base", "monitoring", "hosts", "hosts/monitoring"}},
		"placement":   {values{"placement": enabled}, []string{"placement"}},
		"zones":       {values{"zones": enabled}, []string{"zones"}},
		"edge":        {values{"edge": enabled, "monitoring": enabled}, []string{"edge", "edge/monitoring"}},
		"cluster DNS": {values{"placement": values{"enabled": true, "clusterDNS": true}}, []string{"placement", "placement/cluster-dns"}},
		"fleet": {values{"placement": values{"enabled": true, "clusterDNS": true}, "zones": enabled, "edge": enabled, "monitoring": enabled},
			slices.DeleteFunc(slices.Clone(parts), func(p string) bool { return chartWith(p) != fleetChart })},
	}
	for _, name := range kustomizations(t) {
		if overlay, ok := strings.CutPrefix(name, "overlays/"); ok {
			cases[overlay] = struct {
				values         values
				kustomizations []string
			}{values{"overlays": []any{overlay}}, []string{name}}
		}
	}
	if len(cases) < 15 {
		t.Fatalf("%d cases, there should be fifteen", len(cases))
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			text := helm(t, chartWith(test.kustomizations[0]), "kube-system", test.values)
			decode(t, name, text) // strictly
			var want []string
			for _, k := range test.kustomizations {
				want = append(want, render(t, k))
			}
			manifests := objects(t, strings.Join(want, "---\n"))
			equal(t, "kustomize and the chart", manifests, withoutRecommended(objects(t, text), manifests))
		})
	}
}

// withoutRecommended takes out of the chart's objects what the charts alone add: the labels that Kubernetes recommends, and Helm's note to
// keep definitions.
func withoutRecommended(chart, kustomize map[string]any) map[string]any {
	for key, object := range chart {
		other, _ := kustomize[key].(map[string]any)
		for _, field := range []string{"labels", "annotations"} {
			meta := object.(map[string]any)["metadata"].(map[string]any)
			entries, _ := meta[field].(map[string]any)
			had := map[string]any{}
			if m, ok := other["metadata"].(map[string]any); ok && m[field] != nil {
				had = m[field].(map[string]any)
			}
			for name := range entries {
				if _, ok := had[name]; !ok && (strings.HasPrefix(name, "app.kubernetes.io/") || strings.HasPrefix(name, "helm.sh/")) {
					delete(entries, name)
				}
			}
			if len(entries) == 0 {
				delete(meta, field)
			}
		}
	}
	return chart
}

// objects are a manifest's, by kind and name.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, doc := range strings.Split(strings.TrimSpace(text), "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		var all any
		for _, into := range []any{&o, &all} {
			must(t, yaml.Unmarshal([]byte(doc), into))
		}
		key := strings.Join([]string{o.Kind, o.Metadata.Namespace, o.Metadata.Name}, "/")
		if _, twice := out[key]; twice || o.Kind == "" {
			t.Fatalf("%s is there twice, or has no kind:\n%s", key, doc)
		}
		out[key] = all
	}
	return out
}

// The image values and pull secrets reach each pod, resources each container that they name.
func TestChartPods(t *testing.T) {
	type values = map[string]any
	enabled, digest := values{"enabled": true}, "sha256:"+strings.Repeat("ab", 32)
	image := values{"registry": "registry.example", "digests": values{"neardns-agent": digest}, "pullSecrets": []any{"one", "two"}}
	text := helm(t, nodeChart, "kube-system", values{
		"image":           image,
		"resources":       values{"agent": values{"limits": values{"memory": "512Mi", "cpu": "2"}, "requests": values{"cpu": nil}}, "done": values{"limits": values{"memory": "9Mi"}}},
		"kubeDNSCorefile": "rke2-coredns-rke2-coredns",
		"hosts":           enabled,
	})
	more := helm(t, fleetChart, "kube-system", values{"image": image, "placement": enabled, "zones": enabled, "edge": enabled})
	objects := decode(t, "pods", text+"\n---\n"+more)
	var pods []corev1.PodSpec
	for _, d := range all[*appsv1.DaemonSet](objects) {
		pods = append(pods, d.Spec.Template.Spec)
	}
	for _, d := range all[*appsv1.Deployment](objects) {
		pods = append(pods, d.Spec.Template.Spec)
	}
	pods = append(pods, the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec)
	seen := map[string]string{}
	for _, pod := range pods {
		if s := pod.ImagePullSecrets; len(s) != 2 || s[0].Name != "one" || s[1].Name != "two" {
			t.Errorf("pull secrets %v", s)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			seen[c.Image] = c.Name
			if c.Name == "agent" {
				have := c.Resources
				if _, cpu := have.Requests["cpu"]; have.Limits.Memory().String() != "512Mi" || have.Limits.Cpu().String() != "2" || cpu || have.Requests.Memory().String() != "64Mi" {
					t.Errorf("resources of the agent: %+v", have)
				}
			}
		}
		for _, v := range pod.Volumes {
			if v.Name == "kube-dns-corefile" && v.ConfigMap.Name != "rke2-coredns-rke2-coredns" {
				t.Errorf("kube-dns's Corefile is in %s", v.ConfigMap.Name)
			}
		}
	}
	want := []string{"registry.example/neardns-agent@" + digest, "registry.example/neardns-controller:dev", "registry.example/neardns-edge:dev", "registry.example/neardns-plugin:dev"}
	equal(t, "images", want, slices.Sorted(maps.Keys(seen)))
	// The schemas list the containers that there are.
	resources := func(names ...string) values {
		all := values{}
		for _, name := range names {
			all[name] = values{"limits": values{"memory": "77Mi"}}
		}
		return all
	}
	for chart, given := range map[string]values{
		nodeChart: {"hosts": enabled, "overlays": []any{"host-resolv-conf"},
			"resources": resources("agent", "cleanup", "copy", "done", "entry", "follow", "hosts", "install", "watch")},
		fleetChart: {"placement": enabled, "zones": enabled, "edge": enabled, "resources": resources("cleanup", "done", "edge", "entry", "placement", "zones")},
	} {
		text = helm(t, chart, "kube-system", given)
		if n, containers := strings.Count(text, "memory: 77Mi"), strings.Count(text, "image: neardns/"); n != containers || n == 0 {
			t.Errorf("%s: %d of %d containers have the resources that are named", chart, n, containers)
		}
	}
}

// helm lint finds nothing in the charts but that they have no icon. The notes and the test's pod of the node's chart are as they should be.
func TestChartLint(t *testing.T) {
	for folder, values := range map[string]map[string]any{nodeChart: nil, fleetChart: {"zones": map[string]any{"enabled": true}}} {
		for _, m := range lint.All(folder, values, "kube-system", true).Messages {
			if !strings.Contains(m.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", folder, m)
			}
		}
	}
	c, err := loader.LoadDir(nodeChart)
	must(t, err)
	for namespace, wants := range map[string][]string{
		"kube-system": {"kubectl -n kube-system exec daemonset/neardns -c agent -- neardns-agent status"}, "dns": {"ConfigMap coredns is in kube-system"},
	} {
		values, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "n", Namespace: namespace}, chartutil.DefaultCapabilities)
		must(t, err)
		files, err := engine.Render(c, values)
		must(t, err)
		for _, want := range wants {
			if notes := files["neardns/templates/NOTES.txt"]; !strings.Contains(notes, want) {
				t.Errorf("the notes do not have %q:\n%s", want, notes)
			}
		}
		pod := the[*corev1.Pod](t, decode(t, "test", files["neardns/templates/tests/status.yaml"]))
		if pod.Annotations["helm.sh/hook"] != "test" || pod.Spec.Containers[0].Image != "neardns/neardns-agent:dev" || pod.Namespace != namespace {
			t.Errorf("the test's pod: %+v", pod)
		}
	}
}

// An edge's configuration is the one named, by a name that changes with it, and the program takes it.
func TestChartEdge(t *testing.T) {
	names := map[string]bool{}
	for _, zone := range []string{"one.example", "two.example"} {
		text := helm(t, fleetChart, "kube-system", map[string]any{
			"image": map[string]any{"registry": "registry.example/dns"},
			"edge": map[string]any{"enabled": true, "edgeConfig": map[string]any{
				"listen": map[string]any{"dns": []any{"${POD_IPS}"}}, "stateDir": "/var/lib/neardns-edge",
				"zones": []any{map[string]any{"name": zone, "primary": "192.0.2.53"}},
			}},
		})
		objects := decode(t, "edge", text)
		set, pod := the[*corev1.ConfigMap](t, objects), the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec
		names[set.Name] = true
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == set.Name }) {
			t.Errorf("the pods do not mount %s: %+v", set.Name, pod.Volumes)
		}
		equal(t, "image", "registry.example/dns/neardns-edge:dev", pod.Containers[0].Image)
		file := filepath.Join(t.TempDir(), "edgeconfig.yaml")
		must(t, os.WriteFile(file, []byte(set.Data["edgeconfig.yaml"]), 0o600))
		if out, code := run(t, "neardns-edge", []string{"POD_IPS=10.0.0.7"}, "--check", "--config="+file); code != 0 || !strings.Contains(set.Data["edgeconfig.yaml"], zone) {
			t.Errorf("neardns-edge refuses it: %s", out)
		}
	}
	equal(t, fmt.Sprintf("names of two configurations: %v", names), 2, len(names))
}
