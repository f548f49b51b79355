package controlplane

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/pkg/testutil"
)

// heartbeat is how often each node's Lease is renewed, and grace how long after the last time the node lifecycle controller takes the node
// for down. A real kubelet renews every 10 s and has 50: here one process does it for 500 nodes, perhaps on a busy machine.
const (
	heartbeat = 20 * time.Second
	grace     = 90 * time.Second
)

// Kubelets stand in for those of all nodes: Leases are renewed, bound pods become Ready, deleted ones go. The scheduler, the DaemonSet
// controller and the node lifecycle controller are the real ones.
type Kubelets struct {
	t testing.TB
	c client.WithWatch

	mu      sync.Mutex
	broken  map[string]bool // nodes whose pods never become Ready, as where no image can be pulled
	stopped map[string]bool // nodes whose kubelet does nothing
}

// RunKubelets starts them; they end with the test.
func RunKubelets(t testing.TB, c client.WithWatch) *Kubelets {
	t.Helper()
	k := &Kubelets{t: t, c: c, broken: map[string]bool{}, stopped: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	pods := make(chan *corev1.Pod, 10000)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(pods)
		for ctx.Err() == nil {
			k.watch(ctx, pods)
		}
	})
	for range 8 {
		wg.Go(func() {
			for pod := range pods {
				k.see(ctx, pod)
			}
		})
	}
	wg.Go(func() { k.renew(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return k
}

// renew keeps the Leases of all nodes but the stopped ones.
func (k *Kubelets) renew(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		var nodes corev1.NodeList
		if err := k.c.List(ctx, &nodes); err == nil { // else the API server is away, and it is tried again
			var g errgroup.Group
			g.SetLimit(8)
			for i := range nodes.Items {
				g.Go(func() error { return k.beat(ctx, nodes.Items[i].Name) })
			}
			if err := g.Wait(); err != nil && ctx.Err() == nil {
				k.t.Logf("fake kubelets: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beat renews the Lease of one node.
func (k *Kubelets) beat(ctx context.Context, node string) error {
	k.mu.Lock()
	stopped := k.stopped[node]
	k.mu.Unlock()
	if stopped {
		return nil
	}
	now, seconds := metav1.NowMicro(), int32(grace/time.Second)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now}}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
	if err != nil {
		return err
	}
	err = k.c.Patch(ctx, lease.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		err = k.c.Create(ctx, lease)
	}
	return err
}

// watch passes pods on until the API server ends it.
func (k *Kubelets) watch(ctx context.Context, pods chan<- *corev1.Pod) {
	w, err := k.c.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && pod.Spec.NodeName != "" && e.Type != "DELETED" {
			pods <- pod
		}
	}
}

func (k *Kubelets) see(ctx context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	broken, stopped := k.broken[pod.Spec.NodeName], k.stopped[pod.Spec.NodeName]
	k.mu.Unlock()
	var err error
	switch {
	case stopped:
		return
	case pod.DeletionTimestamp != nil:
		err = k.c.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case broken || pod.Status.Phase == corev1.PodRunning && ready(pod):
		return
	default:
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		err = k.c.Status().Update(ctx, pod)
	}
	// A conflict or a pod that is gone comes by the watch again, or not any more.
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		k.t.Logf("fake kubelet of %s: %v", pod.Spec.NodeName, err)
	}
}

// ready reports whether a pod is on a node, Ready there, and stays.
func ready(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Stop has the kubelets of the nodes do nothing any more, as those of nodes without power.
func (k *Kubelets) Stop(nodes ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range nodes {
		k.stopped[n] = true
	}
}

// Break makes new pods on the nodes never Ready.
func (k *Kubelets) Break(nodes ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range nodes {
		k.broken[n] = true
	}
}

// Mend ends Break and Stop for all nodes; those that were stopped, and the pods, become Ready.
func (k *Kubelets) Mend() {
	k.t.Helper()
	k.mu.Lock()
	up := slices.Sorted(maps.Keys(k.stopped))
	clear(k.broken)
	clear(k.stopped)
	k.mu.Unlock()
	for _, n := range up {
		testutil.Must(k.t, k.beat(k.t.Context(), n))
		SetReady(k.t, k.c, n, corev1.ConditionTrue)
	}
	var pods corev1.PodList
	testutil.Must(k.t, k.c.List(k.t.Context(), &pods))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName != "" {
			k.see(k.t.Context(), p)
		}
	}
}

// AddNode makes a Ready node. It has Linux's label and those that are given.
func AddNode(t testing.TB, c client.Client, name string, labels map[string]string, taints ...corev1.Taint) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: name}},
		Spec: corev1.NodeSpec{Taints: taints}}
	for k, v := range labels {
		n.Labels[k] = v
	}
	testutil.Must(t, c.Create(t.Context(), n))
	SetReady(t, c, name, corev1.ConditionTrue)
}

// SetReady reports whether a node is up, as its kubelet would.
func SetReady(t testing.TB, c client.Client, name string, status corev1.ConditionStatus) {
	t.Helper()
	Await(t, "node "+name+" takes its status", func() error {
		n := &corev1.Node{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		now := metav1.Now()
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110")}
		n.Status.Capacity = n.Status.Allocatable
		return c.Status().Update(t.Context(), n)
	})
}
