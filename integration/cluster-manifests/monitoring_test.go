package clustermanifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ruleHead stands before the alerts as the operator wants them.
const ruleHead = `# %s, as Prometheus Operator reads rules; make update-golden writes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: %[2]s
  labels: {app.kubernetes.io/name: %[2]s}
spec:
`

// The alerts are kept once, in the form that Prometheus itself reads.
func TestPrometheusRule(t *testing.T) {
	for _, of := range []struct{ file, name, folder string }{
		{"conf/alerts.yaml", "neardns", "monitoring"},
		{"fleet/conf/placement-alerts.yaml", "neardns-controller", "placement/monitoring"},
		{"fleet/conf/edge-alerts.yaml", "neardns-edge", "edge/monitoring"},
		{"fleet/conf/zones-alerts.yaml", "neardns-zones", "zones/monitoring"},
	} {
		alerts := readFile(t, "../../"+of.file)
		_, groups, ok := strings.Cut(alerts, "\ngroups:\n")
		if !ok {
			t.Fatalf("%s has no groups", of.file)
		}
		var text strings.Builder
		fmt.Fprintf(&text, ruleHead, of.file, of.name)
		for line := range strings.Lines("groups:\n" + groups) {
			text.WriteString("  " + line)
		}
		golden(t, "../../"+folder(of.folder)+"/prometheusrule.yaml", text.String())

		rule := the[*monitoringv1.PrometheusRule](t, decode(t, of.folder, render(t, of.folder)))
		var plain, operators any
		must(t, yaml.Unmarshal([]byte(alerts), &plain))
		spec, err := yaml.Marshal(rule.Spec)
		must(t, err)
		must(t, yaml.Unmarshal(spec, &operators))
		equal(t, of.file+": the operator's rules", plain, operators)
	}
}

// wantSelected checks that a monitor selects the pods of a workload, whose job is of a name that the alerts' tests know.
func wantSelected(t *testing.T, monitor *monitoringv1.PodMonitor, namespace string, pods map[string]string, job string) {
	t.Helper()
	equal(t, job+": pods that it selects", pods, monitor.Spec.Selector.MatchLabels)
	equal(t, job+": namespace", namespace, monitor.Namespace)
	equal(t, "job", job, pods[monitor.Spec.JobLabel])
}

// The pods of controllers and edges list their port, so the monitors name it.
func TestFleetPodMonitors(t *testing.T) {
	for folder, want := range map[string]struct {
		job  string
		port int32
	}{"placement": {"neardns-controller", 9255}, "zones": {"neardns-zones", 9257}, "edge": {"neardns-edge", 9273}} {
		monitor := the[*monitoringv1.PodMonitor](t, decode(t, folder+"/monitoring", render(t, folder+"/monitoring")))
		var workload metav1.Object
		var pod corev1.PodTemplateSpec
		if objects := decode(t, folder, render(t, folder)); folder == "edge" {
			set := the[*appsv1.StatefulSet](t, objects)
			workload, pod = set, set.Spec.Template
		} else {
			deployment := the[*appsv1.Deployment](t, objects)
			workload, pod = deployment, deployment.Spec.Template
		}
		wantSelected(t, monitor, workload.GetNamespace(), pod.Labels, want.job)
		port := monitor.Spec.PodMetricsEndpoints[0].Port
		if port == nil || !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == *port && p.ContainerPort == want.port }) {
			t.Errorf("%s: the monitor's port is none of the pods': %v", folder, port)
		}
	}
}

// The PodMonitor finds the DaemonSet's pods, and relabels them as the sample does that a real Prometheus runs on.
func TestPodMonitor(t *testing.T) {
	monitor := the[*monitoringv1.PodMonitor](t, decode(t, "monitoring", render(t, "monitoring")))
	base := decode(t, "base", render(t, "base"))
	set := the[*appsv1.DaemonSet](t, base)
	wantSelected(t, monitor, set.Namespace, set.Spec.Template.Labels, "neardns")
	if n := len(monitor.Spec.PodMetricsEndpoints); n != 1 {
		t.Fatalf("%d endpoints", n)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if endpoint.Port != nil || endpoint.PortNumber != nil {
		t.Error("it names a port: the pods list none, so nothing would be found")
	}
	type relabeling struct {
		Source      []string `json:"source_labels"`
		Regex       string   `json:"regex"`
		Target      string   `json:"target_label"`
		Replacement string   `json:"replacement"`
		Action      string   `json:"action"`
	}
	var sample struct {
		Jobs []struct {
			Relabel []relabeling `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	read(t, "../../conf/prometheus.yaml", &sample)
	var got []relabeling
	for _, r := range endpoint.RelabelConfigs {
		one := relabeling{Regex: r.Regex, Target: r.TargetLabel, Action: r.Action}
		if r.Replacement != nil {
			one.Replacement = *r.Replacement
		}
		for _, l := range r.SourceLabels {
			one.Source = append(one.Source, string(l))
		}
		got = append(got, one)
	}
	// Namespace and pod, the last ones, the operator sets by itself.
	want := sample.Jobs[0].Relabel
	if len(want) != len(got)+2 {
		t.Fatalf("the sample has %d relabelings, the monitor %d", len(want), len(got))
	}
	equal(t, "relabelings", want[:len(got)], got)
	// The port is where the agent listens.
	address := show(t, the[*corev1.ConfigMap](t, base).Data["nodeconfig.yaml"]).Listen.Metrics
	if _, port, _ := strings.Cut(address, ":"); !strings.HasSuffix(got[1].Replacement, ":"+port) || !strings.HasSuffix(got[2].Replacement, ":"+port) {
		t.Errorf("the agent listens on %s, Prometheus asks %s and %s", address, got[1].Replacement, got[2].Replacement)
	}
}
