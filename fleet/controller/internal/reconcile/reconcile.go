// Package reconcile applies the decisions of fleet/controller/placement. It reads nodes, pods and EndpointSlices from the API server by a
// watch cache, and sets or removes the label neardns.io/cache, which keeps the node cache off a node. It also writes on which nodes
// kube-dns's pods may run, into the Deployment of kube-dns or OpenShift's DNS object, and the status of the NodeDNS, and reports changes by
// Events and metrics.
//
// It guarantees that it excludes a node by the label only if it read the watch cache at most 2 s ago and the node has not changed since. On
// failure it reads the cluster again and retries; a node whose change the API server refuses does not delay other nodes.
package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
)

// fresh is the maximum age of what was read of the cluster, when a node is excluded. A controller that was stopped (SIGSTOP) for longer
// reads the cluster again first, or exits because it has lost the Lease.
const fresh = 2 * time.Second

// Reconciler moves the cluster toward the placement, one step in each call of Reconcile. Its methods are for one goroutine.
type Reconciler struct {
	Client  client.Client
	Events  events.EventRecorder
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	Reader  client.Reader    // reads the workload of kube-dns from the API server
	KubeDNS client.ObjectKey // namespace and name of the Deployment of kube-dns

	labels   labels
	written  *v1alpha1.NodeDNS // the NodeDNS as the API server returned it after the last write of its status
	gaveBack bool              // without spec.clusterDNS: the controller owns no field of kube-dns's workload, or may not read it

	dns    []placement.Condition // the conditions of kube-dns's placement, by the last run in which it was decided
	wrote  map[string]any        // the fields that were last written, or to be written, into the workload of kube-dns
	writes [mostWrites]time.Time // when these fields were written, oldest first; zero: not written so often
}

// Reconcile reads the cluster, places kube-dns, writes the status of the NodeDNS, and changes the labels of the next step. Watched events
// trigger it, except those that matters drops.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	looked := r.Now()
	nodes, cluster, err := r.read(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var want placement.Want
	var dns *v1alpha1.ClusterDNS
	object := &v1alpha1.NodeDNS{}
	err = r.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.Name}, object)
	switch {
	case apierrors.IsNotFound(err), err == nil && object.DeletionTimestamp != nil:
		object = nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("read the NodeDNS: %w", err)
	default:
		object = r.asWritten(object)
		late := unfinishedFor(object, looked) > placement.Deadline
		want = placement.Want{Spec: &object.Spec.NodePlacement, Last: object.Status.Accepted, Late: late}
		dns = object.Spec.ClusterDNS
	}
	conditions := r.clusterDNS(ctx, cluster, dns)
	if r.Now().Sub(looked) > fresh/2 { // clusterDNS waited for the API server
		looked = r.Now()
		if nodes, cluster, err = r.read(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	d := placement.Decide(cluster, want)
	if conditions = slices.Concat(d.Conditions[:], conditions); object == nil {
		conditions = nil
	}
	r.Metrics.set(&d, conditions)
	if object != nil {
		// Write the status first: if the controller stops here, its successor continues with the same accepted placement.
		if err := r.report(ctx, object, &d, conditions); err != nil {
			return ctrl.Result{}, err
		}
	}
	result, err := r.change(ctx, nodes, &d, looked, object)
	if (dns != nil || !r.gaveBack) && (result.RequeueAfter == 0 || result.RequeueAfter > pollDNS) {
		result.RequeueAfter = pollDNS
	}
	return result, err
}

// read reads the cluster from the watch cache. It returns the nodes by name, and the input of placement.Decide.
func (r *Reconciler) read(ctx context.Context) (map[string]*corev1.Node, placement.Cluster, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	var slices discoveryv1.EndpointSliceList
	// The lists need no selector: of pods and EndpointSlices, Run has restricted the watch cache to those of the node cache and of kube-dns in
	// one namespace.
	for what, list := range map[string]client.ObjectList{"nodes": &nodes, "the cache's pods": &pods, "kube-dns's endpoints": &slices} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, placement.Cluster{}, fmt.Errorf("list %s: %w", what, err)
		}
	}
	byName := make(map[string]*corev1.Node, len(nodes.Items))
	seen := make([]*corev1.Node, 0, len(nodes.Items))
	for i := range nodes.Items {
		n := r.labels.asSent(&nodes.Items[i])
		byName[n.Name] = n
		seen = append(seen, n)
	}
	r.labels.forget(byName)
	cluster := placement.Read(seen, pointers(pods.Items), pointers(slices.Items))
	r.labels.refusedLast(cluster.Nodes)
	return byName, cluster, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// change writes the labels of one step, first for the nodes that get the cache. If a write fails, it returns an error, so that Reconcile
// runs again. If the API server refuses the change of one node (for example because of a webhook, or of another program's change), change
// first writes the labels of the other nodes.
func (r *Reconciler) change(
	ctx context.Context, nodes map[string]*corev1.Node, d *placement.Decision, looked time.Time, object *v1alpha1.NodeDNS,
) (ctrl.Result, error) {
	var refused []error
	for _, name := range d.Include {
		if err := r.label(ctx, nodes[name], false); errors.As(err, new(apierrors.APIStatus)) {
			refused = append(refused, err)
		} else if err != nil {
			return ctrl.Result{}, err
		}
	}
	for _, name := range d.Exclude {
		if r.Now().Sub(looked) > fresh {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil
		}
		if err := r.label(ctx, nodes[name], true); errors.As(err, new(apierrors.APIStatus)) {
			refused = append(refused, err)
		} else if err != nil {
			return ctrl.Result{}, err
		}
	}
	if len(refused) > 0 {
		return ctrl.Result{}, fmt.Errorf("the labels of %d nodes were not changed, those of the others were: %w", len(refused), refused[0])
	}
	if object == nil || d.Conditions[1].True || d.Conditions[1].Reason == placement.DeadlineExceeded {
		return ctrl.Result{}, nil
	}
	// No event arrives when the deadline passes, so schedule a run for it.
	return ctrl.Result{RequeueAfter: max(placement.Deadline-unfinishedFor(object, looked), 0) + time.Second}, nil
}

// label sets or removes the label neardns.io/cache of a node. Setting the label fails if the node has changed since it was read; the next
// run then decides again.
func (r *Reconciler) label(ctx context.Context, node *corev1.Node, excluded bool) error {
	metadata := map[string]any{"labels": map[string]any{placement.Label: nil}}
	if excluded {
		metadata = map[string]any{"labels": map[string]any{placement.Label: placement.Excluded}, "resourceVersion": node.ResourceVersion}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	answer := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	err = r.Client.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.labels.refuse(node.Name)
		return fmt.Errorf("label node %s: %w", node.Name, err)
	}
	r.labels.sent(answer)
	r.Metrics.labelled(excluded)
	r.Log.Info("set or removed the label neardns.io/cache of a node", "node", node.Name, "excluded", excluded)
	return nil
}

// report writes the status if it changed, and emits an Event for each condition with a new reason or for a new generation.
func (r *Reconciler) report(
	ctx context.Context, object *v1alpha1.NodeDNS, d *placement.Decision, conditions []placement.Condition,
) error {
	old := object.Status.DeepCopy()
	status := &object.Status
	if status.ObservedGeneration != object.Generation {
		meta.RemoveStatusCondition(&status.Conditions, placement.ConditionApplied) // its LastTransitionTime is of the previous placement
	}
	status.ObservedGeneration = object.Generation
	status.Accepted = d.Accepted.DeepCopy()
	status.Nodes, status.Eligible, status.Ready, status.Excluded = int32(d.Nodes), int32(d.Eligible), int32(d.Ready), int32(d.ExcludedNodes)
	status.Conditions = slices.DeleteFunc(status.Conditions, func(old metav1.Condition) bool {
		return !slices.ContainsFunc(conditions, func(c placement.Condition) bool { return c.Type == old.Type })
	})
	for _, c := range conditions {
		value := metav1.ConditionFalse
		if c.True {
			value = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: c.Type, Status: value, Reason: c.Reason, Message: c.Message, ObservedGeneration: object.Generation,
			LastTransitionTime: metav1.Time{Time: r.Now()},
		})
	}
	slices.SortFunc(status.Conditions, func(a, b metav1.Condition) int { return order(a.Type) - order(b.Type) })
	if reflect.DeepEqual(old, status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("write the status of the NodeDNS: %w", err)
	}
	r.written = object.DeepCopy()
	for _, c := range conditions {
		before := meta.FindStatusCondition(old.Conditions, c.Type)
		if before != nil && before.Reason == c.Reason && before.ObservedGeneration == object.Generation {
			continue
		}
		kind := corev1.EventTypeNormal
		if c.Warns() {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(object, nil, kind, c.Reason, c.Type, "%s", shortened(c.Message))
		r.Log.Info("NodeDNS condition has a new reason or generation", "type", c.Type, "true", c.True, "reason", c.Reason, "message", c.Message)
	}
	return nil
}

// asWritten returns the NodeDNS as the watch cache has it. If that is older than the last write of its status, asWritten returns the result
// of that write.
func (r *Reconciler) asWritten(object *v1alpha1.NodeDNS) *v1alpha1.NodeDNS {
	if r.written == nil || r.written.UID != object.UID || !older(object, r.written) {
		return object
	}
	return r.written.DeepCopy()
}

// shortened truncates an Event's note, for which the API server has a limit of 1,024 bytes (noteLengthLimit in
// pkg/apis/core/validation/events.go).
func shortened(message string) string {
	const most = 1000
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + " …"
}

func order(condition string) int {
	return slices.Index([]string{placement.ConditionAccepted, placement.ConditionApplied, placement.ConditionAvailable,
		placement.ConditionDNSAvailable, placement.ConditionDNSProgressing, placement.ConditionDNSDegraded, placement.ConditionWorkersIsolated,
	}, condition)
}

// unfinishedFor returns for how long the condition Applied has not been True for the current generation; 0 if it is True or not known.
func unfinishedFor(object *v1alpha1.NodeDNS, now time.Time) time.Duration {
	c := meta.FindStatusCondition(object.Status.Conditions, placement.ConditionApplied)
	if c == nil || c.Status == metav1.ConditionTrue || c.ObservedGeneration != object.Generation {
		return 0
	}
	return now.Sub(c.LastTransitionTime.Time)
}
