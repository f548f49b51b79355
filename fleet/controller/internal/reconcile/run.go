package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/internal/lead"
)

// lease is the name of the Lease object for leader election.
const lease = "neardns-placement"

// Options configure the controller.
type Options struct {
	Namespace string // of the cache, kube-dns and the Lease
	Cache     string // label app.kubernetes.io/name of the cache's pods
	KubeDNS   string // name of the Service
	Workload  string // name of the Deployment of kube-dns
	Metrics   string // address
	Health    string // address
	Log       *slog.Logger
}

// Run leads, or waits to lead, until ctx ends. If it loses the Lease it returns an error, and the program must exit.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	here := map[string]cache.Config{o.Namespace: {}}
	m, err := lead.New(config, lead.Options{
		Lease: lease, Namespace: o.Namespace, Metrics: o.Metrics, Health: o.Health, Kinds: kinds, Log: o.Log,
		Objects: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: slim},
			&corev1.Pod{}:  {Transform: slim, Namespaces: here, Label: k8slabels.SelectorFromSet(k8slabels.Set{"app.kubernetes.io/name": o.Cache})},
			&discoveryv1.EndpointSlice{}: {Transform: slim, Namespaces: here,
				Label: k8slabels.SelectorFromSet(k8slabels.Set{discoveryv1.LabelServiceName: o.KubeDNS})},
		}})
	if err != nil {
		return err
	}
	own, err := NewMetrics(metrics.Registry)
	if err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	r := &Reconciler{Client: m.GetClient(), Events: m.GetEventRecorder("neardns-controller"), Log: o.Log, Metrics: own, Now: time.Now,
		Reader: m.GetAPIReader(), KubeDNS: client.ObjectKey{Namespace: o.Namespace, Name: o.Workload}}
	once := lead.Once(v1alpha1.Name)
	b := ctrl.NewControllerManagedBy(m).Named("placement").WithOptions(lead.Retry())
	for _, object := range []client.Object{&v1alpha1.NodeDNS{}, &corev1.Node{}, &corev1.Pod{}, &discoveryv1.EndpointSlice{}} {
		b = b.Watches(object, once)
	}
	if err := b.WithEventFilter(matters).Complete(r); err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	return m.Start(ctx)
}

// kinds registers the types of objects that the placement role reads and writes.
var kinds = []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, v1alpha1.AddToScheme}

// slim reduces a cached object to the fields that this package and placement.Read need, so that thousands of nodes take little memory.
func slim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		var ready []corev1.NodeCondition
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready = append(ready, corev1.NodeCondition{Type: c.Type, Status: c.Status})
			}
		}
		return &corev1.Node{ObjectMeta: identity(o), Spec: corev1.NodeSpec{Taints: o.Spec.Taints},
			Status: corev1.NodeStatus{Conditions: ready}}, nil
	case *corev1.Pod:
		var ready []corev1.PodCondition
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.PodReady {
				ready = append(ready, corev1.PodCondition{Type: c.Type, Status: c.Status})
			}
		}
		return &corev1.Pod{ObjectMeta: identity(o), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName},
			Status: corev1.PodStatus{Phase: o.Status.Phase, Conditions: ready}}, nil
	case *discoveryv1.EndpointSlice:
		return &discoveryv1.EndpointSlice{ObjectMeta: identity(o), Endpoints: o.Endpoints}, nil
	}
	return object, nil
}

func identity(o client.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		Generation: o.GetGeneration(), Labels: o.GetLabels(), DeletionTimestamp: o.GetDeletionTimestamp()}
}

// matters drops update events that cannot change a decision, for example a node's heartbeat or this controller's own status write.
var matters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	if n, ok := e.ObjectNew.(*v1alpha1.NodeDNS); ok {
		return n.Generation != e.ObjectOld.GetGeneration() || n.DeletionTimestamp != nil
	}
	was, is := e.ObjectOld.DeepCopyObject(), e.ObjectNew.DeepCopyObject()
	for _, o := range []any{was, is} {
		if o, ok := o.(client.Object); ok {
			o.SetResourceVersion("")
			o.SetGeneration(0)
		}
	}
	return !reflect.DeepEqual(was, is)
}}
