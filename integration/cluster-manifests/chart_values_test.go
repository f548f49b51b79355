package clustermanifests

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/platform"
)

// Each value changes what it is for.
func TestChartValues(t *testing.T) {
	text := helm(t, nodeChart, "kube-system", map[string]any{
		"image":      map[string]any{"registry": "registry.example:5000/dns/", "tag": "v9", "pullPolicy": "Always"},
		"overlays":   []any{"pod-dns", "host-resolv-conf"},
		"nodeConfig": map[string]any{"clusterDomain": "corp.example", "kubeProxyMode": "ipvs"},
		"paths":      map[string]any{"cniBin": "/home/kubernetes/bin"},
		"hosts":      map[string]any{"enabled": true, "nodeConfig": map[string]any{"hosts": map[string]any{"services": []any{"a/b"}}}},
	})
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
		equal(t, part, times, strings.Count(text, part))
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
			text := helm(t, nodeChart, "kube-system", given)
			config := the[*corev1.ConfigMap](t, decode(t, name, text)).Data["nodeconfig.yaml"]
			var got, want any
			wanted := "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nadoptPods: true\nkernelHits: {mode: auto}\n" + test.want
			for from, into := range map[string]*any{config: &got, wanted: &want} {
				must(t, yaml.Unmarshal([]byte(from), into))
			}
			equal(t, "values", want, got)
		})
	}
}

// With DNS settings for pods, the chart mounts what containerd 2 needs for them, and adds no setting of the overlay's example.
func TestChartPodDNS(t *testing.T) {
	type values = map[string]any
	const containerd, nri = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes", "/var/run/nri"
	settings := values{"searches": []any{"corp.example"}}
	for name, test := range map[string]struct {
		given values
		want  []string // the mounts
	}{
		"settings":        {values{"nodeConfig": values{"podDNS": settings, "adoptPods": false}}, []string{nri, containerd}},
		"for a namespace": {values{"nodeConfig": values{"podDNS": values{"namespaces": values{"shop": settings}}}}, []string{nri, containerd}},
		"by name":         {values{"overlays": []any{"pod-dns"}, "nodeConfig": values{"podDNS": settings}}, []string{nri, containerd}},
		"k3s": {values{"platform": "k3s", "nodeConfig": values{"podDNS": settings}},
			[]string{nri, "/var/lib/rancher/k3s/agent/containerd/io.containerd.grpc.v1.cri/sandboxes"}},
		"annotations alone": {values{"nodeConfig": values{"podDNS": values{"annotations": "ignore"}}}, nil},
		"off":               {values{"nodeConfig": values{"podDNS": settings, "resolvConf": values{"nri": "off"}}}, nil},
		"none":              {values{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			text := helm(t, nodeChart, "kube-system", test.given)
			objects := decode(t, name, text)
			var mounts []string
			for _, m := range the[*appsv1.DaemonSet](t, objects).Spec.Template.Spec.Containers[0].VolumeMounts {
				if strings.Contains(m.MountPath, "nri") || strings.Contains(m.MountPath, "sandboxes") {
					mounts = append(mounts, m.MountPath)
				}
			}
			config := the[*corev1.ConfigMap](t, objects).Data["nodeconfig.yaml"]
			if named := strings.Contains(config, "nri: /var/run/nri/nri.sock"); !slices.Equal(mounts, test.want) || named != (test.want != nil) {
				t.Errorf("mounts %v, want %v, with\n%s", mounts, test.want, config)
			}
			if strings.Contains(config, "ndots") != (name == "by name") || strings.Contains(config, "adoptPods: true") == (name == "settings") {
				t.Error(config)
			}
		})
	}
}

// Each platform gives the DaemonSet its folders, and the installer the kubelet's configuration, unless paths.kubelet is none.
func TestChartPlatforms(t *testing.T) {
	for _, p := range platform.All() {
		t.Run(p.Name, func(t *testing.T) {
			text := helm(t, nodeChart, p.Namespace, map[string]any{"platform": p.Name})
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
				equal(t, name, want, got[name])
			}
			if none := helm(t, nodeChart, p.Namespace, map[string]any{"platform": p.Name, "paths": map[string]any{"kubelet": "none"}}); strings.Contains(none, "name: kubelet") {
				t.Error("with no kubelet's configuration there is one")
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
	text := helm(t, nodeChart, "dns", values{
		"nameOverride": "cache", "commonLabels": values{"team": "net"}, "podLabels": values{"pod": "label"}, "podAnnotations": values{"pod": "note"},
		"nodeSelector": values{"pool": "blue"}, "tolerations": []any{values{"key": "gpu", "operator": "Exists"}}, "priorityClassName": "mine",
		"affinity":       values{"nodeAffinity": values{}},
		"updateStrategy": values{"type": "OnDelete"}, "extraEnv": []any{values{"name": "UPSTREAM", "value": "192.0.2.1"}},
		"hosts": values{"enabled": true},
		"monitoring": values{"enabled": true, "labels": values{"release": "prometheus"}, "interval": "15s",
			"dashboard": values{"enabled": true, "labels": values{"grafana_dashboard": "1"}}},
	})
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
		equal(t, part, times, strings.Count(text, part))
	}
}

// The fleet's objects have the same, in the release's namespace or, for the zones' controller, its own; their definitions outlive the
// release.
func TestFleetChartKnobs(t *testing.T) {
	type values = map[string]any
	enabled, monitoring := values{"enabled": true}, values{"enabled": true, "interval": "15s"}
	text := helm(t, fleetChart, "dns", values{"placement": enabled, "zones": enabled, "edge": enabled, "platform": "k3s",
		"affinity": values{"nodeAffinity": values{}}, "nodeSelector": values{"pool": "blue"}, "monitoring": monitoring})
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
	// The pods that clean nodes keep their own.
	for part, times := range map[string]int{"pool: blue": 3, "- excluded\n": 1, "interval: 15s": 3, "kind: PodDisruptionBudget": 3,
		"path: /readyz": 3, "path: /var/lib/rancher/k3s/data/cni": 1, "system:serviceaccount:dns:": 1, "--namespace=dns": 1, "kube-system": 1} {
		equal(t, part, times, strings.Count(text, part))
	}
	equal(t, "definitions that are kept: NodeDNS, DNSZone, DNSRecord and DNSPolicy", 4, kept)
}

// On OpenShift, the controller looks for kube-dns by the name that it has there, and each right is in its namespace.
func TestFleetChartOpenShift(t *testing.T) {
	type values = map[string]any
	text := helm(t, fleetChart, "openshift-dns", values{"platform": "openshift",
		"placement": values{"enabled": true, "clusterDNS": true}})
	args := the[*appsv1.Deployment](t, decode(t, "openshift", text)).Spec.Template.Spec.Containers[0].Args
	equal(t, "arguments", []string{"placement", "--namespace=openshift-dns", "--kube-dns=dns-default"}, args)
	if strings.Contains(text, "kube-system") || strings.Count(text, "system:serviceaccount:openshift-dns:neardns-controller") != 2 {
		t.Error("an account or a role is of another namespace")
	}
	// integration/controlplane applies it to an API server.
	if to := os.Getenv("NEARDNS_RENDERED"); to != "" {
		must(t, os.WriteFile(to, []byte(text), 0o600))
	}
}

// A bad value gets an error that names it.
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
			text, err := tryHelm(t, nodeChart, test.namespace, test.values)
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), test.want) {
				t.Errorf("error %v does not name %q; rendered:\n%.200s", err, test.want, text)
			}
		})
	}
	if _, err := tryHelm(t, fleetChart, "kube-system", nil); err == nil || !strings.Contains(err.Error(), "nothing is enabled") {
		t.Errorf("fleet's chart with nothing enabled: %v", err)
	}
}

// On OpenShift the hosts role has the registry's Service as it is named there; elsewhere the example, and everywhere what the values list.
func TestChartHosts(t *testing.T) {
	type values = map[string]any
	for want, given := range map[string]values{
		"services: [registry/image-registry]":       {"hosts": values{"enabled": true}},
		"- openshift-image-registry/image-registry": {"hosts": values{"enabled": true}, "platform": "openshift"},
		"- a/b": {"hosts": values{"enabled": true, "nodeConfig": values{"hosts": values{"services": []any{"a/b"}}}}, "platform": "openshift"},
	} {
		text := helm(t, nodeChart, "openshift-dns", given)
		if strings.Count(text, want) != 1 || strings.Contains(text, "registry/image") == (want == "- a/b") {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

// The values that docs/install-and-configure.md shows are taken.
func TestChartDocument(t *testing.T) {
	text := readFile(t, install+"/../docs/install-and-configure.md")
	_, block, shown := strings.Cut(text, "```yaml\n# values.yaml\n")
	block, _, closed := strings.Cut(block, "```")
	values := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(block), &values); err != nil || !shown || !closed {
		t.Fatalf("docs/install-and-configure.md shows no values: %v", err)
	}
	out := helm(t, nodeChart, "kube-system", values)
	for _, set := range all[*corev1.ConfigMap](decode(t, "docs/install-and-configure.md", out)) {
		// The agent reads it, and each field is known.
		show(t, set.Data["nodeconfig.yaml"])
		// Next to the agent on the node's network, where the pod's probe connects.
		if text := set.Data["nodeconfig.yaml"]; set.Name == "neardns-hosts" && (!strings.Contains(text, "registry/registry") || !strings.Contains(text, "127.0.0.1:9264")) {
			t.Errorf("the hosts role's configuration:\n%s", text)
		}
	}
	if n := strings.Count(out, "image: registry.example/dns/"); n != 5 {
		t.Errorf("%d images of the registry, want 5:\n%s", n, out)
	}
}
