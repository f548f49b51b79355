package controlplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/pkg/testutil"
)

const controllers = "daemonset-controller,node-lifecycle-controller,serviceaccount-controller"

// cluster is a control plane with the product's manifests, fake nodes and kube-dns's endpoint.
type cluster struct {
	*Plane
	kubelets *Kubelets
	running  int
	shown    string // by showPlacement, the last time
	// Of the cache, the controller and kube-dns, and the name of kube-dns's Service.
	namespace, kubeDNS string
}

// newCluster makes nodes: infra nodes have the label infra, the others none. more are names of further controllers.
func newCluster(t *testing.T, infra, others int, more ...string) *cluster {
	t.Helper()
	c := &cluster{namespace: "kube-system", kubeDNS: "kube-dns"}
	manifests := [][]string{{"apply", "-f", "../../install/neardns.yaml"}, {"apply", "-k", "../../fleet/install/placement"}}
	c.start(t, manifests, infra, others, more...)
	return c
}

// start makes the control plane, applies the manifests and waits for the caches.
func (c *cluster) start(t *testing.T, manifests [][]string, infra, others int, more ...string) {
	t.Helper()
	c.Plane = Start(t, true, strings.Join(append([]string{controllers}, more...), ","))
	c.kubelets = RunKubelets(t, c.Client)
	for i := range infra {
		AddNode(t, c.Client, fmt.Sprintf("infra%03d", i), map[string]string{"infra": ""})
	}
	for i := range others {
		AddNode(t, c.Client, fmt.Sprintf("worker%03d", i), nil)
	}
	for _, args := range manifests {
		c.AwaitKubectl(args...)
	}
	c.upstreams(1)
	c.awaitCaches("every node has a Ready cache", infra+others)
}

// awaitCaches waits until so many nodes have a Ready cache.
func (c *cluster) awaitCaches(what string, n int) {
	c.t.Helper()
	Await(c.t, what, func() error {
		ready := len(c.caches())
		return testutil.ErrorIf(ready != n, "%d of %d", ready, n)
	})
}

// upstreams gives kube-dns that many ready endpoints.
func (c *cluster) upstreams(n int) {
	c.t.Helper()
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-test", Namespace: c.namespace,
		Labels: map[string]string{discoveryv1.LabelServiceName: c.kubeDNS}}, AddressType: discoveryv1.AddressTypeIPv4}
	for i := range n {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", 10+i)}})
	}
	testutil.Must(c.t, client.IgnoreNotFound(c.Client.Delete(c.t.Context(), slice.DeepCopy())))
	testutil.Must(c.t, c.Client.Create(c.t.Context(), slice))
}

// controller starts one, with the account and the arguments of the manifests.
func (c *cluster) controller() *Process {
	c.t.Helper()
	c.running++
	name := fmt.Sprintf("controller%d", c.running)
	config := c.Kubeconfig("controller.kubeconfig", c.Token(c.namespace, "neardns-controller"))
	d := &appsv1.Deployment{}
	testutil.Must(c.t, c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: c.namespace, Name: "neardns-controller"}, d))
	args := slices.Concat(d.Spec.Template.Spec.Containers[0].Args, []string{"--kubeconfig=" + config, "--metrics=0", "--health=0"})
	return Run(c.t, c.path(name+".log"), "../../bin/neardns-controller", args...)
}

// caches are the nodes with a Ready cache, with its pod's UID.
func (c *cluster) caches() map[string]string {
	c.t.Helper()
	var pods corev1.PodList
	testutil.Must(c.t, c.Client.List(c.t.Context(), &pods, client.InNamespace(c.namespace), client.MatchingLabels{"app.kubernetes.io/name": "neardns"}))
	out := map[string]string{}
	for i := range pods.Items {
		if p := &pods.Items[i]; ready(p) {
			out[p.Spec.NodeName] = string(p.UID)
		}
	}
	return out
}

// patchNode changes fields of a node.
func (c *cluster) patchNode(name, fields string) {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	testutil.Must(c.t, c.Client.Patch(c.t.Context(), n, client.RawPatch("application/merge-patch+json", []byte(fields))))
}

func (c *cluster) nodes() []corev1.Node {
	c.t.Helper()
	var list corev1.NodeList
	testutil.Must(c.t, c.Client.List(c.t.Context(), &list))
	return list.Items
}

// included are the nodes without the label.
func (c *cluster) included() (out []string) {
	for _, n := range c.nodes() {
		if n.Labels[placement.Label] != placement.Excluded {
			out = append(out, n.Name)
		}
	}
	return out
}

// apply writes a placement, from a file's text or YAML.
func (c *cluster) apply(text string) {
	c.t.Helper()
	if !strings.Contains(text, "apiVersion") {
		text = "apiVersion: neardns.io/v1alpha1\nkind: NodeDNS\nmetadata: {name: default}\nspec: {nodePlacement: " + text + "}\n"
	}
	showApply(" ", text)
	want := &v1alpha1.NodeDNS{}
	testutil.Must(c.t, yaml.UnmarshalStrict([]byte(text), want))
	Await(c.t, "the placement is written", func() error {
		old := &v1alpha1.NodeDNS{}
		if err := c.Client.Get(c.t.Context(), client.ObjectKey{Name: "default"}, old); err != nil {
			return c.Client.Create(c.t.Context(), want.DeepCopy())
		}
		old.Spec = want.Spec
		return c.Client.Update(c.t.Context(), old)
	})
}

func (c *cluster) object() *v1alpha1.NodeDNS {
	c.t.Helper()
	object := &v1alpha1.NodeDNS{}
	testutil.Must(c.t, c.Client.Get(c.t.Context(), client.ObjectKey{Name: "default"}, object))
	return object
}

// reasons waits until the conditions of the present generation have them, and returns how long that took.
func (c *cluster) reasons(want string) time.Duration {
	c.t.Helper()
	begin := time.Now()
	Await(c.t, want, func() error {
		object := c.object()
		var got []string
		for _, condition := range object.Status.Conditions {
			got = append(got, condition.Reason)
		}
		s := strings.Join(got, " ")
		return testutil.ErrorIf(s != want || object.Status.ObservedGeneration != object.Generation, "%s: %+v", s, object.Status.Conditions)
	})
	took := time.Since(begin)
	c.showPlacement()
	return took
}

// watcher sees every change of nodes and of the cache's pods, and what is wrong with it.
type watcher struct {
	mu      sync.Mutex
	ready   map[string]map[string]bool // by node, UIDs of Ready pods
	count   map[string]int             // changes of the label by node
	labels  map[string]string
	keep    func(node string) bool // nodes of which one must have a Ready cache at every moment
	faults  []string
	fewest  int
	deleted map[string]int // by node, pods of the cache that went
}

// watch begins with what is there.
func (c *cluster) watch(keep func(string) bool) *watcher {
	c.t.Helper()
	w := &watcher{ready: map[string]map[string]bool{}, count: map[string]int{}, labels: map[string]string{}, keep: keep, fewest: 1 << 30, deleted: map[string]int{}}
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for _, list := range []client.ObjectList{&corev1.NodeList{}, &corev1.PodList{}} {
		options := []client.ListOption{}
		if _, ok := list.(*corev1.PodList); ok {
			options = append(options, client.InNamespace("kube-system"), client.MatchingLabels{"app.kubernetes.io/name": "neardns"})
		}
		testutil.Must(c.t, c.Client.List(c.t.Context(), list, options...))
		version := list.GetResourceVersion()
		switch l := list.(type) {
		case *corev1.NodeList:
			for i := range l.Items {
				w.labels[l.Items[i].Name] = l.Items[i].Labels[placement.Label]
			}
		case *corev1.PodList:
			for i := range l.Items {
				w.pod(&l.Items[i], false)
			}
		}
		stream, err := c.Client.Watch(ctx, list, append(options, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})...)
		testutil.Must(c.t, err)
		wg.Go(func() {
			for e := range stream.ResultChan() {
				w.mu.Lock()
				switch o := e.Object.(type) {
				case *corev1.Node:
					if is := o.Labels[placement.Label]; is != w.labels[o.Name] {
						w.labels[o.Name] = is
						w.count[o.Name]++
					}
				case *corev1.Pod:
					w.pod(o, e.Type == "DELETED")
				}
				w.mu.Unlock()
			}
		})
	}
	c.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge()
	return w
}

func (w *watcher) pod(p *corev1.Pod, deleted bool) {
	node, uid := p.Spec.NodeName, string(p.UID)
	if w.ready[node] == nil {
		w.ready[node] = map[string]bool{}
	}
	delete(w.ready[node], uid)
	if deleted {
		w.deleted[node]++
	} else if ready(p) {
		w.ready[node][uid] = true
	}
	if w.fewest < 1<<30 {
		w.judge()
	}
}

func (w *watcher) judge() {
	n := 0
	for node, uids := range w.ready {
		if len(uids) > 0 && w.keep(node) {
			n++
		}
	}
	w.fewest = min(w.fewest, n)
	if n == 0 && len(w.faults) < 10 {
		w.faults = append(w.faults, "no eligible node has a Ready cache")
	}
}

// reset begins to count again.
func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.count)
	clear(w.deleted)
}

// most is the largest number of label changes of one node, and how many nodes changed.
func (w *watcher) most() (most, changed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.count {
		most = max(most, n)
		changed++
	}
	return most, changed
}

func infraNode(name string) bool { return strings.HasPrefix(name, "infra") }
