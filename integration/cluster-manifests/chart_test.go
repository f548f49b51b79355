package clustermanifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
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
	Add        []change         `json:"add,omitempty"`
	NodeConfig string           `json:"nodeConfig"`
	Resources  []map[string]any `json:"resources,omitempty"`
}

// parts are the kustomizations that the charts have whole; overlays are in the cache's by what they add.
var parts = []string{"base", "uninstall", "hosts", "placement", "zones", "edge",
	"monitoring", "hosts/monitoring", "placement/monitoring", "zones/monitoring", "edge/monitoring"}

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
	if err != nil {
		t.Fatal(err)
	}
	for _, chart := range []string{nodeChart, fleetChart} {
		golden(t, filepath.Join(chart, "files/platforms.yaml"), strings.ReplaceAll(generated, "%s", "pkg/platform")+string(text))
	}
	// What both charts do with each object has one source.
	shared, err := os.ReadFile(nodeChart + "/templates/_objects.tpl")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, fleetChart+"/templates/_objects.tpl", string(shared))
	dashboard, err := os.ReadFile("../../conf/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join(nodeChart, "files/dashboard.json"), string(dashboard))
	for _, name := range kustomizations(t) {
		name, ok := strings.CutPrefix(name, "overlays/")
		if !ok && !slices.Contains(parts, name) && name != "placement/left" { // which is in placement
			t.Errorf("no chart has a part for %s", folder(name))
		}
		if ok {
			text, err := yaml.Marshal(overlayOf(t, name))
			if err != nil {
				t.Fatal(err)
			}
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
		if err := yaml.UnmarshalStrict([]byte(p.Patch), &changes); err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			switch {
			case c.Op == "test":
			case c.Op == "add" && p.Target.Kind == "DaemonSet" && p.Target.Name == "neardns":
				o.Add = append(o.Add, c)
			default:
				t.Fatalf("overlay %s: the chart cannot %s", name, c.Op)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "nodeconfig.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	o.NodeConfig = string(text)
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
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// helm does what `helm template neardns install/chart --namespace kube-system --set …` does.
func helm(t *testing.T, namespace string, values map[string]any) (string, error) {
	t.Helper()
	return helmOf(t, nodeChart, namespace, values)
}

func helmOf(t *testing.T, folder, namespace string, values map[string]any) (string, error) {
	t.Helper()
	c, err := loader.LoadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return helmChart(c, namespace, values)
}

func helmChart(c *chart.Chart, namespace string, values map[string]any) (string, error) {
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
		"base":      {nil, []string{"base"}},
		"uninstall": {values{"uninstall": true, "hosts": enabled, "monitoring": enabled}, []string{"uninstall"}},
		"all":       {values{"hosts": enabled, "monitoring": enabled}, []string{"base", "monitoring", "hosts", "hosts/monitoring"}},
		"placement": {values{"placement": enabled}, []string{"placement"}},
		"zones":     {values{"zones": enabled}, []string{"zones"}},
		"edge":      {values{"edge": enabled, "monitoring": enabled}, []string{"edge", "edge/monitoring"}},
		"fleet": {values{"placement": enabled, "zones": enabled, "edge": enabled, "monitoring": enabled},
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
			text, err := helmOf(t, chartWith(test.kustomizations[0]), "kube-system", test.values)
			if err != nil {
				t.Fatal(err)
			}
			decode(t, name, text) // strictly
			var want []string
			for _, k := range test.kustomizations {
				want = append(want, render(t, k))
			}
			manifests := objects(t, strings.Join(want, "---\n"))
			if changes := cmp.Diff(manifests, withoutRecommended(objects(t, text), manifests)); changes != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", changes)
			}
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
			if err := yaml.Unmarshal([]byte(doc), into); err != nil {
				t.Fatal(err)
			}
		}
		key := strings.Join([]string{o.Kind, o.Metadata.Namespace, o.Metadata.Name}, "/")
		if _, twice := out[key]; twice || o.Kind == "" {
			t.Fatalf("%s is there twice, or has no kind:\n%s", key, doc)
		}
		out[key] = all
	}
	return out
}

// Each value changes what it is for.
func TestChartValues(t *testing.T) {
	text, err := helm(t, "kube-system", map[string]any{
		"image":      map[string]any{"registry": "registry.example:5000/dns/", "tag": "v9", "pullPolicy": "Always"},
		"overlays":   []any{"pod-dns", "host-resolv-conf"},
		"nodeConfig": map[string]any{"clusterDomain": "corp.example", "kubeProxyMode": "ipvs"},
		"paths":      map[string]any{"cniBin": "/home/kubernetes/bin"},
		"hosts":      map[string]any{"enabled": true, "nodeConfig": map[string]any{"hosts": map[string]any{"services": []any{"a/b"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	decode(t, "values", text)
	for part, times := range map[string]int{
		"image: registry.example:5000/dns/neardns-agent:v9\n":  3, // agent, watch, hosts
		"image: registry.example:5000/dns/neardns-plugin:v9\n": 3, // copy, install, follow
		"imagePullPolicy: Always":                              6,
		"path: /home/kubernetes/bin\n":                         1,
		"path: /etc/cni/net.d\n":                               1,
		"clusterDomain: corp.example":                          1,
		"kubeProxyMode: ipvs":                                  1,
		"- a/b":                                                1,
		"name: follow\n":                                       1,
		"name: nri\n":                                          2,
	} {
		if n := strings.Count(text, part); n != times {
			t.Errorf("%q is there %d times, not %d", part, n, times)
		}
	}
}

// What a registry of one's own and a limited namespace ask for reaches each pod, and nothing else changes.
func TestChartPods(t *testing.T) {
	type values = map[string]any
	enabled, digest := values{"enabled": true}, "sha256:"+strings.Repeat("ab", 32)
	image := values{"registry": "registry.example", "digests": values{"neardns-agent": digest}, "pullSecrets": []any{"one", "two"}}
	text, err := helm(t, "kube-system", values{
		"image":           image,
		"resources":       values{"agent": values{"limits": values{"memory": "512Mi", "cpu": "2"}, "requests": values{"cpu": nil}}, "done": values{"limits": values{"memory": "9Mi"}}},
		"kubeDNSCorefile": "rke2-coredns-rke2-coredns",
		"hosts":           enabled,
	})
	if err != nil {
		t.Fatal(err)
	}
	more, err := helmOf(t, fleetChart, "kube-system", values{"image": image, "placement": enabled, "zones": enabled, "edge": enabled})
	if err != nil {
		t.Fatal(err)
	}
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
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("images %v, want %v", got, want)
	}
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
		if text, err = helmOf(t, chart, "kube-system", given); err != nil {
			t.Fatal(err)
		}
		if n, containers := strings.Count(text, "memory: 77Mi"), strings.Count(text, "image: neardns/"); n != containers || n == 0 {
			t.Errorf("%s: %d of %d containers have the resources that are named", chart, n, containers)
		}
	}
}

// Fields of NodeConfig come over those of the base and of each overlay, and nothing that these need is lost.
func TestChartNodeConfig(t *testing.T) {
	type values = map[string]any
	for name, test := range map[string]struct {
		overlays []any
		fields   values
		want     string
	}{
		"a field": {nil, values{"log": values{"level": "debug"}}, "kubeDNSConfigMap: /etc/kube-dns\nlog: {level: debug}\nupstreams: {external: auto}"},
		"a field over an overlay": {[]any{"pod-dns"}, values{"podDNS": values{"searches": []any{"corp.example"}}},
			"kubeDNSConfigMap: /etc/kube-dns\npodDNS: {options: ['ndots:2'], searches: [corp.example]}\nresolvConf: {nri: /var/run/nri/nri.sock}\nupstreams: {external: auto}"},
		"false over true": {[]any{"second-kube-dns"}, values{"interceptNode": false},
			"interceptNode: false\nkubeDNSConfigMap: /etc/kube-dns\nupstreams: {cluster: ['${KUBE_DNS_UPSTREAM_SERVICE_HOST}'], external: auto}"},
		"null":         {[]any{"pod-dns"}, values{"podDNS": nil}, "kubeDNSConfigMap: /etc/kube-dns\nresolvConf: {nri: /var/run/nri/nri.sock}\nupstreams: {external: auto}"},
		"two overlays": {[]any{"host-resolv-conf", "iptables"}, nil, "kubeDNSConfigMap: /etc/kube-dns\nkubeProxyMode: iptables\nupstreams: {external: [/host/etc/resolv.conf]}"},
		"the later one": {[]any{"iptables", "nftables"}, values{"upstreams": values{"external": []any{}}},
			"kubeDNSConfigMap: /etc/kube-dns\nkubeProxyMode: nftables\nupstreams: {external: []}"},
	} {
		t.Run(name, func(t *testing.T) {
			given := values{"overlays": test.overlays, "nodeConfig": test.fields}
			if test.overlays == nil {
				given["overlays"] = []any{}
			}
			if test.fields == nil {
				given["nodeConfig"] = values{}
			}
			text, err := helm(t, "kube-system", given)
			if err != nil {
				t.Fatal(err)
			}
			config := the[*corev1.ConfigMap](t, decode(t, name, text)).Data["nodeconfig.yaml"]
			var got, want any
			for from, into := range map[string]*any{config: &got, "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n" + test.want: &want} {
				if err := yaml.Unmarshal([]byte(from), into); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Each platform gives the pods that install and uninstall its folders, and the installer the kubelet's configuration alone.
func TestChartPlatforms(t *testing.T) {
	for _, p := range platform.All() {
		t.Run(p.Name, func(t *testing.T) {
			text, err := helm(t, p.Namespace, map[string]any{"platform": p.Name})
			if err != nil {
				t.Fatal(err)
			}
			scc, text := cutKind(text, "SecurityContextConstraints")
			objects := decode(t, p.Name, text)
			pod := the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec
			got := map[string]string{}
			for _, v := range pod.Volumes {
				switch {
				case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathFile:
					got[v.Name] = v.HostPath.Path
				case v.HostPath != nil:
					got[v.Name] = v.HostPath.Path + "/"
				case v.ConfigMap != nil:
					got[v.Name] = v.ConfigMap.Name
				}
			}
			for name, want := range map[string]string{"cni-bin": p.CNIBin + "/", "cni-conf": p.CNIConf + "/", "kubelet": p.Mount, "kube-dns-corefile": p.Corefile} {
				if got[name] != want {
					t.Errorf("%s is %s, want %s", name, got[name], want)
				}
			}
			if none, err := helm(t, p.Namespace, map[string]any{"platform": p.Name, "paths": map[string]any{"kubelet": "none"}}); err != nil || strings.Contains(none, "name: kubelet") {
				t.Errorf("with no kubelet's configuration there is one: %v", err)
			}
			install := pod.InitContainers[1]
			if i := slices.IndexFunc(install.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "kubelet" }); i >= 0 != (p.Mount != "") ||
				i >= 0 && install.VolumeMounts[i].MountPath != strings.TrimSuffix(p.Mount, "/") {
				t.Errorf("install mounts %+v", install.VolumeMounts)
			}
			if openshift := p.Name == "openshift"; openshift != (scc != "") || openshift && !strings.Contains(scc, "system:serviceaccount:openshift-dns:neardns") {
				t.Errorf("SecurityContextConstraints:\n%s", scc)
			}
		})
	}
}

// cutKind takes the objects of a kind out of a manifest.
func cutKind(text, kind string) (of, rest string) {
	var found, others []string
	for _, doc := range strings.Split(text, "\n---\n") {
		if strings.Contains(doc, "\nkind: "+kind+"\n") {
			found = append(found, doc)
		} else {
			others = append(others, doc)
		}
	}
	return strings.Join(found, "\n---\n"), strings.Join(others, "\n---\n")
}

// The knobs that charts usually have reach what they are for; each object has the recommended labels and is in the release's namespace.
func TestChartKnobs(t *testing.T) {
	type values = map[string]any
	text, err := helm(t, "dns", values{
		"nameOverride": "cache", "commonLabels": values{"team": "net"}, "podLabels": values{"pod": "label"}, "podAnnotations": values{"pod": "note"},
		"nodeSelector": values{"pool": "blue"}, "tolerations": []any{values{"key": "gpu", "operator": "Exists"}}, "priorityClassName": "mine",
		"affinity":       values{"nodeAffinity": values{}},
		"updateStrategy": values{"type": "OnDelete"}, "extraEnv": []any{values{"name": "UPSTREAM", "value": "192.0.2.1"}},
		"hosts": values{"enabled": true},
		"monitoring": values{"enabled": true, "labels": values{"release": "prometheus"}, "interval": "15s",
			"dashboard": values{"enabled": true, "labels": values{"grafana_dashboard": "1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	all, monitors := objects(t, text), 0
	for key, object := range all {
		kind, _, _ := strings.Cut(key, "/")
		meta := object.(values)["metadata"].(values)
		labels := meta["labels"].(values)
		for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/component",
			"app.kubernetes.io/part-of", "app.kubernetes.io/managed-by", "helm.sh/chart", "team"} {
			if labels[label] == nil {
				t.Errorf("%s has no label %s", key, label)
			}
		}
		if meta["namespace"] != "dns" || !strings.HasPrefix(meta["name"].(string), "cache") {
			t.Errorf("%s is not in the release's namespace by its name", key)
		}
		if kind == "PodMonitor" || kind == "PrometheusRule" {
			monitors++
			if labels["release"] != "prometheus" || kind == "PodMonitor" && strings.Count(text, "interval: 15s") != 2 {
				t.Errorf("%s: %v", key, labels)
			}
		}
	}
	if len(all) != 9 || monitors != 3 {
		t.Errorf("%d objects, %d of them for Prometheus: %v", len(all), monitors, slices.Sorted(maps.Keys(all)))
	}
	for part, times := range map[string]int{"pod: label": 2, "pod: note": 2, "pool: blue": 2, "key: gpu": 2, "priorityClassName: mine": 2, "type: OnDelete": 1,
		"name: UPSTREAM": 1, "serviceAccountName: cache\n": 1, "virtual-kubelet": 0, "system-node-critical": 0} {
		if n := strings.Count(text, part); n != times {
			t.Errorf("%q is there %d times, not %d", part, n, times)
		}
	}
}

// The fleet's objects have the same, in the release's namespace or, for the zones' controller, its own; their definitions outlive the
// release.
func TestFleetChartKnobs(t *testing.T) {
	type values = map[string]any
	enabled := values{"enabled": true}
	text, err := helmOf(t, fleetChart, "dns", values{"placement": enabled, "zones": enabled, "edge": enabled, "platform": "k3s",
		"nodeSelector": values{"pool": "blue"}, "monitoring": values{"enabled": true, "interval": "15s"}})
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for key, object := range objects(t, text) {
		meta := object.(values)["metadata"].(values)
		if labels, _ := meta["labels"].(values); labels["helm.sh/chart"] == nil || labels["app.kubernetes.io/part-of"] != "neardns" {
			t.Errorf("%s has labels %v", key, labels)
		}
		if n := meta["namespace"]; n != nil && n != "dns" && n != "neardns-zones" && n != "default" {
			t.Errorf("%s is in %s", key, n)
		}
		if strings.HasPrefix(key, "CustomResourceDefinition/") && meta["annotations"].(values)["helm.sh/resource-policy"] == "keep" {
			kept++
		}
	}
	for part, times := range map[string]int{"pool: blue": 4, "interval: 15s": 3, "kind: PodDisruptionBudget": 3, "path: /readyz": 3,
		"path: /var/lib/rancher/k3s/data/cni": 1, "system:serviceaccount:dns:": 1, "--namespace=dns": 1, "kube-system": 1 /* its UID */} {
		if n := strings.Count(text, part); n != times {
			t.Errorf("%q is there %d times, not %d", part, n, times)
		}
	}
	if kept != 3 {
		t.Errorf("%d definitions are kept, want NodeDNS, DNSZone and DNSRecord", kept)
	}
}

// helm lint finds nothing in the charts, nor in what they show and test after an installation.
func TestChartLint(t *testing.T) {
	for folder, values := range map[string]map[string]any{nodeChart: nil, fleetChart: {"zones": map[string]any{"enabled": true}}} {
		for _, m := range lint.All(folder, values, "kube-system", true).Messages {
			if !strings.Contains(m.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", folder, m)
			}
		}
	}
	c, err := loader.LoadDir(nodeChart)
	if err != nil {
		t.Fatal(err)
	}
	for namespace, wants := range map[string][]string{
		"kube-system": {"kubectl -n kube-system exec daemonset/neardns -c agent -- neardns-agent status"}, "dns": {"ConfigMap coredns is in kube-system"},
	} {
		values, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "n", Namespace: namespace}, chartutil.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(c, values)
		if err != nil {
			t.Fatal(err)
		}
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
		text, err := helmOf(t, fleetChart, "kube-system", map[string]any{
			"image": map[string]any{"registry": "registry.example/dns"},
			"edge": map[string]any{"enabled": true, "edgeConfig": map[string]any{
				"listen": map[string]any{"dns": []any{"${POD_IPS}"}}, "stateDir": "/var/lib/neardns-edge",
				"zones": []any{map[string]any{"name": zone, "primary": "192.0.2.53"}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		objects := decode(t, "edge", text)
		set, pod := the[*corev1.ConfigMap](t, objects), the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec
		names[set.Name] = true
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == set.Name }) {
			t.Errorf("the pods do not mount %s: %+v", set.Name, pod.Volumes)
		}
		if want := "registry.example/dns/neardns-edge:dev"; pod.Containers[0].Image != want {
			t.Errorf("image %s, want %s", pod.Containers[0].Image, want)
		}
		file := filepath.Join(t.TempDir(), "edgeconfig.yaml")
		if err := os.WriteFile(file, []byte(set.Data["edgeconfig.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := run(t, "neardns-edge", []string{"POD_IPS=10.0.0.7"}, "--check", "--config="+file); code != 0 || !strings.Contains(set.Data["edgeconfig.yaml"], zone) {
			t.Errorf("neardns-edge refuses it: %s", out)
		}
	}
	if len(names) != 2 {
		t.Errorf("a changed configuration keeps its name: %v", names)
	}
}

// A value that is none gets an error that names it.
func TestChartRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		namespace string
		values    map[string]any
		want      string
	}{
		"namespace":     {"default", map[string]any{"overlays": []any{"second-kube-dns"}}, "--namespace kube-system"},
		"platform":      {"kube-system", map[string]any{"platform": "k0s"}, "platform"},
		"unknown value": {"kube-system", map[string]any{"nodeconfig": map[string]any{}}, "nodeconfig"},
		"overlay":       {"kube-system", map[string]any{"overlays": []any{"calico"}}, "overlays.0"},
		"container":     {"kube-system", map[string]any{"resources": map[string]any{"agnet": map[string]any{}}}, "agnet"},
		"digest":        {"kube-system", map[string]any{"image": map[string]any{"digests": map[string]any{"neardns-agent": "latest"}}}, "neardns-agent"},
		"digest of":     {"kube-system", map[string]any{"image": map[string]any{"digests": map[string]any{"agent": "sha256:" + strings.Repeat("0", 64)}}}, "digests"},
		"path":          {"kube-system", map[string]any{"paths": map[string]any{"cniBin": "opt/cni"}}, "cniBin"},
		"policy":        {"kube-system", map[string]any{"image": map[string]any{"pullPolicy": "Sometimes"}}, "pullPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := helm(t, test.namespace, test.values)
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), test.want) {
				t.Errorf("error %v does not name %q; rendered:\n%.200s", err, test.want, text)
			}
		})
	}
	if _, err := helmOf(t, fleetChart, "kube-system", nil); err == nil || !strings.Contains(err.Error(), "nothing is enabled") {
		t.Errorf("fleet's chart with nothing enabled: %v", err)
	}
}

// The values that docs/install-and-configure.md shows are taken.
func TestChartDocument(t *testing.T) {
	text, err := os.ReadFile(install + "/../docs/install-and-configure.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, shown := strings.Cut(string(text), "```yaml\n# values.yaml\n")
	block, _, closed := strings.Cut(block, "```")
	values := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(block), &values); err != nil || !shown || !closed {
		t.Fatalf("docs/install-and-configure.md shows no values: %v", err)
	}
	out, err := helm(t, "kube-system", values)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range all[*corev1.ConfigMap](decode(t, "docs/install-and-configure.md", out)) {
		// The agent reads it, and each field is known.
		show(t, set.Data["nodeconfig.yaml"])
		// Next to the agent on the node's network, where the pod's probe asks.
		if text := set.Data["nodeconfig.yaml"]; set.Name == "neardns-hosts" && (!strings.Contains(text, "registry/registry") || !strings.Contains(text, "127.0.0.1:9264")) {
			t.Errorf("the hosts role's configuration:\n%s", text)
		}
	}
	if n := strings.Count(out, "image: registry.example/dns/"); n != 5 {
		t.Errorf("%d images of the registry, want 5:\n%s", n, out)
	}
}
