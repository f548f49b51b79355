package records

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/neardns/neardns/agent/api/v1alpha1"
	"github.com/neardns/neardns/agent/internal/publish"
	"github.com/neardns/neardns/agent/internal/targets"
	"github.com/neardns/neardns/agent/internal/zone"
)

// lease is the name of the Lease by which one replica leads.
const lease = "neardns-zones"

// Options say where the controller looks and listens.
type Options struct {
	Namespace string // of the keys' Secrets and of the Lease
	ClusterID string // empty: made of the UID of the namespace kube-system
	Metrics   string // address
	Health    string // address
	Log       *slog.Logger
}

// Validate names the flag that is wrong.
func (o Options) Validate() error {
	if o.ClusterID == "" {
		return nil
	}
	if err := (zone.Identity{Cluster: o.ClusterID, Instance: "any"}).Validate(); err != nil {
		return fmt.Errorf("--cluster-id: %w", err)
	}
	return nil
}

// Run leads, or waits to, until ctx ends. Who loses the lead gets an error and has to end.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	ctrl.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	m, err := ctrl.NewManager(config, o.manager(scheme))
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add the health check: %w", err)
	}
	own, err := NewMetrics(metrics.Registry)
	if err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	identity, err := identify(ctx, m.GetAPIReader(), o)
	if err != nil {
		return err
	}
	o.Log.Info("this cluster", "id", identity.Cluster, "instance", identity.Instance)
	changed := make(chan event.GenericEvent, 1)
	checker := targets.New(ctx, o.Log, targets.Options{})
	r := &Reconciler{
		Client: m.GetClient(), Direct: m.GetAPIReader(), Events: m.GetEventRecorder("neardns-zones"), Log: o.Log, Metrics: own, Now: time.Now,
		Namespace: o.Namespace, ClusterID: identity.Cluster, Health: checker,
		Open: opener(ctx, identity, publish.NewMetrics(metrics.Registry), o.Log, func() {
			select {
			case changed <- event.GenericEvent{Object: &v1alpha1.DNSZone{}}:
			default: // one is on its way, and will see it
			}
		}),
	}
	// Whatever happens, there is one thing to do.
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Name: "all"}}}
	})
	b := ctrl.NewControllerManagedBy(m).Named("zones").WatchesRawSource(source.Channel(changed, once))
	for _, object := range []client.Object{&v1alpha1.DNSZone{}, &v1alpha1.DNSRecord{}, &corev1.Secret{}, &corev1.Service{}} {
		b = b.Watches(object, once)
	}
	if err := b.WithEventFilter(matters).Complete(r); err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	err = m.Start(ctx)
	r.Close()
	return err
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make the scheme: %w", err)
		}
	}
	return scheme, nil
}

// identify makes what this cluster is called in zones: its id of the UID of kube-system, which stays as long as the cluster, and its
// instance of the UID of the controller's namespace, which a cluster that got the same id has another one of.
func identify(ctx context.Context, reader client.Reader, o Options) (zone.Identity, error) {
	var system, own corev1.Namespace
	for name, into := range map[string]*corev1.Namespace{metav1.NamespaceSystem: &system, o.Namespace: &own} {
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, into); err != nil {
			return zone.Identity{}, fmt.Errorf("read the UID of namespace %s: %w", name, err)
		}
	}
	id := zone.Identity{Cluster: o.ClusterID, Instance: zone.ClusterID(string(own.UID))}
	if id.Cluster == "" {
		id.Cluster = zone.ClusterID(string(system.UID))
	}
	if err := id.Validate(); err != nil {
		return zone.Identity{}, fmt.Errorf("name this cluster: %w", err)
	}
	return id, nil
}

func (o Options) manager(scheme *runtime.Scheme) manager.Options {
	return manager.Options{
		Scheme: scheme, LeaderElection: true, LeaderElectionID: lease, LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress: o.Health,
		Metrics:                metricsserver.Options{BindAddress: o.Metrics},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}:  {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&corev1.Service{}: {Transform: slim},
		}},
	}
}

// slim leaves of a Service what serviceSource takes of it.
func slim(object any) (any, error) {
	s, ok := object.(*corev1.Service)
	if !ok {
		return object, nil
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Spec: corev1.ServiceSpec{Type: s.Spec.Type}, Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer}}, nil
}

// matters passes over what only this program writes: statuses.
var matters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	switch e.ObjectNew.(type) {
	case *v1alpha1.DNSZone, *v1alpha1.DNSRecord:
		return e.ObjectNew.GetGeneration() != e.ObjectOld.GetGeneration() || e.ObjectNew.GetDeletionTimestamp() != nil ||
			len(e.ObjectNew.GetFinalizers()) != len(e.ObjectOld.GetFinalizers())
	}
	return true
}}
