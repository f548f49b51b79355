package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/pkg/testutil"
)

// kubeadmDNS is the Deployment of kubeadm (cmd/kubeadm/app/phases/addons/dns/manifests.go, Kubernetes 1.36) in what decides where pods run.
const kubeadmDNS = `
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  replicas: 2
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      tolerations:
      - {key: CriticalAddonsOnly, operator: Exists}
      - {key: node-role.kubernetes.io/control-plane, effect: NoSchedule}
      nodeSelector: {kubernetes.io/os: linux}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              labelSelector: {matchExpressions: [{key: k8s-app, operator: In, values: [kube-dns]}]}
              topologyKey: kubernetes.io/hostname
      containers:
      - {name: coredns, image: coredns}
`

// newDNSCluster has three workers with kube-dns on two of them, and three control-plane nodes.
func newDNSCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 0, 3, "deployment-controller", "replicaset-controller")
	d := &appsv1.Deployment{}
	testutil.Must(t, yaml.UnmarshalStrict([]byte(kubeadmDNS), d))
	testutil.Must(t, c.Client.Create(t.Context(), d, client.FieldOwner("kubeadm")))
	Await(t, "kube-dns is ready", func() error { return c.dnsOn("worker000", "worker001", "worker002") })
	for i := range 3 {
		AddNode(t, c.Client, fmt.Sprintf("m%d", i), map[string]string{"node-role.kubernetes.io/control-plane": ""},
			corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule})
	}
	return c
}

func (c *cluster) coredns() *appsv1.Deployment {
	c.t.Helper()
	d := &appsv1.Deployment{}
	testutil.Must(c.t, c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "coredns"}, d))
	return d
}

// dnsPods are the nodes of kube-dns's ready pods.
func (c *cluster) dnsPods() (out []string) {
	c.t.Helper()
	var pods corev1.PodList
	testutil.Must(c.t, c.Client.List(c.t.Context(), &pods, client.InNamespace("kube-system"), client.MatchingLabels{"k8s-app": "kube-dns"}))
	for i := range pods.Items {
		if ready(&pods.Items[i]) {
			out = append(out, pods.Items[i].Spec.NodeName)
		}
	}
	slices.Sort(out)
	return out
}

// dnsOn reports whether kube-dns's two pods are ready on these nodes alone.
func (c *cluster) dnsOn(nodes ...string) error {
	on := c.dnsPods()
	return testutil.ErrorIf(len(on) != 2 || slices.ContainsFunc(on, func(n string) bool { return !slices.Contains(nodes, n) }),
		"kube-dns is on %v", on)
}

// endpoints makes kube-dns's ready pods its endpoints, as the endpoint slice controller does.
func (c *cluster) endpoints(nodes ...string) {
	c.t.Helper()
	slice := &discoveryv1.EndpointSlice{}
	testutil.Must(c.t, c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: c.namespace, Name: "kube-dns-test"}, slice))
	slice.Endpoints = nil
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", 10+i)}, NodeName: &node})
	}
	testutil.Must(c.t, c.Client.Update(c.t.Context(), slice))
}

// place sets spec.clusterDNS, from YAML; "": there is none.
func (c *cluster) place(text string) {
	c.t.Helper()
	if text != "" {
		text = "clusterDNS: " + text
	}
	c.apply("apiVersion: neardns.io/v1alpha1\nkind: NodeDNS\nmetadata: {name: default}\nspec: {" + text + "}\n")
}

// wantReasons waits until the conditions of kube-dns have the reasons. One of their messages must contain the text.
func (c *cluster) wantReasons(reasons, text string) {
	c.t.Helper()
	c.reasons(strings.TrimSpace("Accepted Applied Available " + reasons))
	for _, condition := range c.object().Status.Conditions {
		if strings.Contains(condition.Message, text) {
			return
		}
	}
	c.t.Errorf("no condition has %q: %+v", text, c.object().Status.Conditions)
}

func (c *cluster) kubectl(args ...string) {
	c.t.Helper()
	show("kubectl "+strings.Join(args, " "), c.MustKubectl(args...))
}

// difference is "" if the fields are the same, and both as YAML if not.
func difference(want, got any) string {
	if equality.Semantic.DeepEqual(want, got) {
		return ""
	}
	a, errA := yaml.Marshal(want)
	b, errB := yaml.Marshal(got)
	return fmt.Sprintf("%s\n(want)\n%s\n(got; %v)", a, b, errors.Join(errA, errB))
}

const masters = `nodePlacement: {nodeSelector: {node-role.kubernetes.io/control-plane: ""}}`

// kube-dns moves from workers to the control plane and back, as its own rollout does it. A dry run, a missing right and each refusal change
// nothing.
func TestClusterDNSPlaced(t *testing.T) {
	c := newDNSCluster(t)
	before := c.coredns()
	c.endpoints(c.dnsPods()...)
	controller := c.controller()
	c.apply(testutil.ReadFile(t, "../../fleet/conf/nodedns-cluster-dns.yaml"))
	c.wantReasons("Available DryRun AsExpected WorkersQueried", "eligible: 3 nodes (m0, m1, m2)")
	c.wantReasons("Available DryRun AsExpected WorkersQueried", "kube-dns runs on 2 nodes")
	c.kubectl("patch", "nodedns", "default", "--type=merge", "-p", `{"spec":{"clusterDNS":{"mode":"Apply"}}}`)
	c.wantReasons("Available NotApplied WriteRefused WorkersQueried", "kubectl apply -k fleet/install/placement/cluster-dns gives the right")
	c.untouched("a dry run", before)

	fewest := c.watchDNS()
	c.kubectl("apply", "-f", "../../fleet/install/placement/cluster-dns/policy.yaml") // first, as the guide has it
	c.kubectl("apply", "-k", "../../fleet/install/placement/cluster-dns")
	Await(t, "kube-dns is on the control plane", func() error { return c.dnsOn("m0", "m1", "m2") })
	c.endpoints(c.dnsPods()...)
	c.wantReasons("Available AsExpected AsExpected Isolated", "Deployment kube-system/coredns has the placement")
	placed := c.coredns()
	pod := placed.Spec.Template.Spec.DeepCopy()
	if pod.Affinity.NodeAffinity == nil {
		t.Error("it has no node affinity")
	}
	pod.Affinity.NodeAffinity = nil
	if diff := difference(&before.Spec.Template.Spec, pod); diff != "" {
		t.Errorf("other fields of the template changed:\n%s", diff)
	}

	refusals := c.refusals(placed)
	// Without a placement, the Deployment is as it was.
	c.place("")
	c.givenBack(before)
	c.wantReasons("Isolated", "")
	// Also where the NodeDNS goes while no controller runs.
	c.place("{mode: Apply, " + masters + "}")
	c.wantReasons("Available AsExpected AsExpected Isolated", "")
	controller.Kill()
	testutil.Must(t, c.Client.Delete(t.Context(), c.object()))
	if c.coredns().Spec.Template.Spec.Affinity.NodeAffinity == nil {
		t.Fatal("it is given back before there is a controller")
	}
	c.controller()
	c.givenBack(before)
	least := fewest()
	if least < 1 {
		t.Errorf("%d pods of kube-dns were ready at the fewest", least)
	}
	t.Logf("kube-dns moved to the control plane and back, at least %d of 2 pods ready; %d refusals", least, refusals)
}

// refusals are placements that change nothing of the Deployment; it returns how many.
func (c *cluster) refusals(placed *appsv1.Deployment) int {
	c.t.Helper()
	refused := map[string][]string{
		`{mode: Apply, nodePlacement: {nodeSelector: {foo: bar}}}`: {
			"NotEnoughNodes", "0 nodes are eligible for kube-dns, of at least 2; of the others, 6 nodes lack foo=bar"},
		`{mode: Apply, nodePlacement: {tolerations: [{key: infra, operator: Exists}]}}`: {"FieldTaken", "kubeadm has set tolerations"},
		`{mode: Apply, minReady: 2, nodePlacement: {nodeSelector: {kubernetes.io/os: linux}}}`: {
			"UnsafeRollout", "may leave 1 of 2 pods, of at least 2: kubectl -n kube-system patch deployment coredns"},
	}
	for placement, want := range refused {
		c.place(placement)
		c.wantReasons("Available NotApplied "+want[0]+" Isolated", want[1])
		c.untouched(placement, placed)
	}
	c.kubectl("-n", "kube-system", "label", "deployment", "coredns", "app.kubernetes.io/managed-by=Helm")
	c.place(`{mode: Apply, nodePlacement: {nodeSelector: {kubernetes.io/os: linux}}}`)
	c.wantReasons("Available NotApplied ManagedElsewhere Isolated", "is managed by Helm")
	c.untouched("a placement of Helm's", placed)
	c.kubectl("-n", "kube-system", "label", "deployment", "coredns", "app.kubernetes.io/managed-by-")
	return len(refused) + 1
}

// untouched holds the Deployment to what it was.
func (c *cluster) untouched(what string, d *appsv1.Deployment) {
	c.t.Helper()
	if diff := difference(d.Spec, c.coredns().Spec); diff != "" {
		c.t.Errorf("%s changed the Deployment:\n%s", what, diff)
	}
}

// givenBack waits until the Deployment is as it was.
func (c *cluster) givenBack(before *appsv1.Deployment) {
	c.t.Helper()
	Await(c.t, "the field is given back", func() error {
		diff := difference(before.Spec, c.coredns().Spec)
		return testutil.ErrorIf(diff != "", "%s", diff)
	})
	c.showPlacement()
}

// watchDNS counts ready pods of kube-dns all the time. The result ends it and gives the fewest.
func (c *cluster) watchDNS() func() int {
	fewest, stop := 1<<30, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var pods corev1.PodList
			if c.Client.List(c.t.Context(), &pods, client.InNamespace("kube-system"), client.MatchingLabels{"k8s-app": "kube-dns"}) == nil {
				n := 0
				for i := range pods.Items {
					if ready(&pods.Items[i]) {
						n++
					}
				}
				fewest = min(fewest, n)
			}
			select {
			case <-c.t.Context().Done():
				return
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	return func() int {
		close(stop)
		wg.Wait()
		return fewest
	}
}

// dnsCRD is OpenShift's definition of dns.operator (operator/v1/types_dns.go of openshift/api) in what the controller reads and writes.
const dnsCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: dnses.operator.openshift.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: operator.openshift.io
  names: {kind: DNS, listKind: DNSList, plural: dnses, singular: dns}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              logLevel: {type: string}
              nodePlacement:
                type: object
                properties:
                  nodeSelector: {type: object, additionalProperties: {type: string}}
                  tolerations:
                    type: array
                    items:
                      type: object
                      properties:
                        effect: {type: string}
                        key: {type: string}
                        operator: {type: string}
                        tolerationSeconds: {type: integer, format: int64}
                        value: {type: string}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

const dnsOperator = "apiVersion: operator.openshift.io/v1\nkind: DNS\nmetadata: {name: default}\n" +
	"spec: {logLevel: Normal, nodePlacement: {}}\n"

// openShift makes dns.operator "default", as OpenShift's own operator does.
func (c *cluster) openShift() {
	c.t.Helper()
	c.write("crd.yaml", dnsCRD)
	c.kubectl("apply", "-f", c.path("crd.yaml"))
	c.write("dns.yaml", dnsOperator)
	c.AwaitKubectl("create", "--field-manager=dns-operator", "-f", c.path("dns.yaml")) // once the definition is in force
}

func (c *cluster) operatorSpec() string {
	c.t.Helper()
	return c.MustKubectl("get", "dnses.operator.openshift.io", "default", "-o", "jsonpath={.spec}")
}

// newOpenShift has what the chart renders for OpenShift, in the namespace of its kube-dns, whose DaemonSet it has too. Six nodes: three
// workers, and a control plane with the old name's taint, which the operator tolerates by default.
func newOpenShift(t *testing.T) (c *cluster, operated *appsv1.DaemonSet) {
	t.Helper()
	cache := testutil.ReadFile(t, "../../install/neardns.yaml")
	dir := t.TempDir()
	chart, moved := filepath.Join(dir, "chart.yaml"), filepath.Join(dir, "cache.yaml")
	testutil.Must(t, os.WriteFile(moved, []byte(strings.ReplaceAll(cache, "kube-system", "openshift-dns")), 0o600))
	const renders = "^TestFleetChartOpenShift$"
	render := exec.CommandContext(t.Context(), "go", "test", "-C", "../cluster-manifests", "-count=1", "-run", renders, ".")
	render.Env = append(os.Environ(), "NEARDNS_RENDERED="+chart)
	if out, err := render.CombinedOutput(); err != nil {
		t.Fatalf("render the chart: %v: %s", err, out)
	}
	c = &cluster{namespace: "openshift-dns", kubeDNS: "dns-default"}
	c.start(t, [][]string{{"create", "namespace", "openshift-dns"}, {"apply", "-f", moved}, {"apply", "-f", chart}}, 0, 3)
	for i := range 3 {
		AddNode(t, c.Client, fmt.Sprintf("m%d", i), map[string]string{"node-role.kubernetes.io/control-plane": ""},
			corev1.Taint{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule})
	}
	operated = &appsv1.DaemonSet{}
	testutil.Must(t, yaml.UnmarshalStrict([]byte(dnsDaemonSet), operated))
	testutil.Must(t, c.Client.Create(t.Context(), operated, client.FieldOwner("dns-operator")))
	c.openShift()
	return c, operated
}

// dnsDaemonSet is what the operator makes of its object, in what decides where pods run.
const dnsDaemonSet = `
metadata: {name: dns-default, namespace: openshift-dns}
spec:
  selector: {matchLabels: {dns.operator.openshift.io/daemonset-dns: default}}
  template:
    metadata: {labels: {dns.operator.openshift.io/daemonset-dns: default}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{key: node-role.kubernetes.io/master, operator: Exists}]
      containers:
      - {name: dns, image: coredns}
`

// On OpenShift, the controller writes its operator's documented field and no workload, in steps that leave pods ready, and gives it back.
func TestClusterDNSOpenShift(t *testing.T) {
	c, operated := newOpenShift(t)
	was := c.operatorSpec()
	c.endpoints("worker000", "worker001")
	c.controller()
	const tolerate = `tolerations: [{key: node-role.kubernetes.io/master, operator: Exists}]`
	const both = `{mode: Apply, nodePlacement: {nodeSelector: {node-role.kubernetes.io/control-plane: ""}, ` + tolerate + `}}`
	c.place(both)
	c.wantReasons("Available NotApplied UnsafeRollout WorkersQueried", "only 0 of 2 pods of kube-dns are on nodes that stay")
	c.place(`{mode: Apply, nodePlacement: {` + tolerate + `}}`)
	c.wantReasons("Available AsExpected AsExpected WorkersQueried", "dns.operator default has the placement")
	c.endpoints("m0", "worker000")
	c.place(both)
	c.wantReasons("Available AsExpected AsExpected WorkersQueried", "eligible: 3 nodes")
	want := `{"logLevel":"Normal","nodePlacement":{"nodeSelector":{"node-role.kubernetes.io/control-plane":""},` +
		`"tolerations":[{"key":"node-role.kubernetes.io/master","operator":"Exists"}]}}`
	if got := c.operatorSpec(); got != want {
		t.Errorf("spec %s, want %s", got, want)
	}
	c.endpoints("m0")
	c.wantReasons("Available AsExpected AsExpected Isolated", "")
	status := func(text string) {
		c.kubectl("patch", "dnses.operator.openshift.io", "default", "--type=merge", "--subresource=status", "-p", `{"status":`+text+`}`)
	}
	status(`{"conditions":[{"type":"Degraded","status":"True","message":"too few pods"},{"type":"Progressing","status":"True"}]}`)
	c.wantReasons("Available RollingOut RolloutFailed Isolated", "too few pods")
	status("null")
	// Another's edit is not overwritten, and what is ours is removed.
	c.place("")
	Await(t, "the field is given back", func() error {
		got := c.operatorSpec()
		return testutil.ErrorIf(got != was, "%s, want %s", got, was)
	})
	c.kubectl("patch", "dnses.operator.openshift.io", "default", "--type=merge", "--field-manager=someone", "-p",
		`{"spec":{"nodePlacement":{"nodeSelector":{"a":"b"}}}}`)
	c.place(both)
	c.wantReasons("Available NotApplied FieldTaken Isolated", "someone has set spec.nodePlacement.nodeSelector of dns.operator default")
	after := &appsv1.DaemonSet{}
	testutil.Must(t, c.Client.Get(t.Context(), client.ObjectKeyFromObject(operated), after))
	if diff := difference(operated.Spec, after.Spec); diff != "" {
		t.Errorf("the DaemonSet changed:\n%s", diff)
	}
}
