package records

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/internal/lead"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
)

// lease is the name of the Lease object for leader election.
const lease = "neardns-zones"

// Options configure the controller.
type Options struct {
	Namespace string // namespace of the TSIG keys' Secrets and of the Lease
	ClusterID string // if empty, derived from the UID of the namespace kube-system
	Metrics   string // address on which /metrics is served
	Health    string // address on which /healthz and /readyz are served
	Log       *slog.Logger
}

// Validate returns an error, which names the flag, if ClusterID is invalid.
func (o *Options) Validate() error {
	if o.ClusterID == "" {
		return nil
	}
	if err := (zone.Identity{Cluster: o.ClusterID, Instance: "any"}).Validate(); err != nil {
		return fmt.Errorf("--cluster-id: %w", err)
	}
	return nil
}

// Run leads, or waits to lead, until ctx ends. If it loses the Lease it returns an error, and the program must exit.
func Run(ctx context.Context, config *rest.Config, o Options) error {
	m, err := lead.New(config, lead.Options{
		Lease: lease, Namespace: o.Namespace, Metrics: o.Metrics, Health: o.Health, Kinds: kinds, Log: o.Log,
		Objects: map[client.Object]cache.ByObject{
			&corev1.Secret{}:  {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&corev1.Service{}: {Transform: slim},
		}})
	if err != nil {
		return err
	}
	own, err := NewMetrics(metrics.Registry)
	if err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	identity, err := identify(ctx, m.GetAPIReader(), o)
	if err != nil {
		return err
	}
	o.Log.Info("identity of this cluster in shared zones", "id", identity.Cluster, "instance", identity.Instance)
	changed := make(chan event.GenericEvent, 1)
	checker := healthcheck.New(ctx, o.Log, healthcheck.Options{})
	r := &Reconciler{
		Client: m.GetClient(), Direct: m.GetAPIReader(), Events: m.GetEventRecorder("neardns-zones"), Log: o.Log, Metrics: own, Now: time.Now,
		Namespace: o.Namespace, ClusterID: identity.Cluster, Health: checker,
		Open: opener(ctx, identity, zonewriter.NewMetrics(metrics.Registry), o.Log, func() {
			select {
			case changed <- event.GenericEvent{Object: &v1alpha1.DNSZone{}}:
			default: // an event is queued already; its reconcile run covers this change too
			}
		}),
	}
	once := lead.Once("all")
	b := ctrl.NewControllerManagedBy(m).Named("zones").WithOptions(lead.Retry()).WatchesRawSource(source.Channel(changed, once))
	for _, object := range r.watched(m.GetRESTMapper()) {
		b = b.Watches(object, once)
	}
	if err := b.WithEventFilter(matters).Complete(r); err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	err = m.Start(ctx)
	r.Close()
	return err
}

// watched returns the kinds of objects that cause a reconcile run, and sets NoPolicies. A cluster can lack the DNSPolicy CRD, which is
// newer than the others.
func (r *Reconciler) watched(mapper meta.RESTMapper) []client.Object {
	objects := []client.Object{&v1alpha1.DNSZone{}, &v1alpha1.DNSRecord{}, &corev1.Secret{}, &corev1.Service{}}
	_, err := mapper.RESTMapping(v1alpha1.GroupVersion.WithKind("DNSPolicy").GroupKind(), v1alpha1.GroupVersion.Version)
	if r.NoPolicies = meta.IsNoMatchError(err); r.NoPolicies {
		r.Log.Warn("this cluster has no DNSPolicy CRD: apply fleet/install/zones and restart this Deployment, if you want DNSPolicies")
		return objects
	}
	return append(objects, &v1alpha1.DNSPolicy{})
}

// kinds registers the types of objects that the zones role reads and writes.
var kinds = []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme}

// identify returns the identity under which this cluster writes in zones. Without o.ClusterID, the ID comes from the UID of kube-system,
// which never changes. The instance comes from the UID of the controller's namespace, so it differs between two clusters that have the same
// ID, unless one is a copy of the other's etcd.
func identify(ctx context.Context, reader client.Reader, o Options) (zone.Identity, error) {
	var system, own corev1.Namespace
	for into, name := range map[*corev1.Namespace]string{&system: metav1.NamespaceSystem, &own: o.Namespace} { // they may be the same
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

// slim reduces a cached Service to the fields that zones.ServiceSource needs.
func slim(object any) (any, error) {
	s, ok := object.(*corev1.Service)
	if !ok {
		return object, nil
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Spec: corev1.ServiceSpec{Type: s.Spec.Type}, Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer}}, nil
}

// matters drops update events of this controller's objects in which only the status or metadata changed, except finalizers and deletion:
// this controller wrote the status itself.
var matters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	switch e.ObjectNew.(type) {
	case *v1alpha1.DNSZone, *v1alpha1.DNSRecord, *v1alpha1.DNSPolicy:
		return e.ObjectNew.GetGeneration() != e.ObjectOld.GetGeneration() || e.ObjectNew.GetDeletionTimestamp() != nil ||
			len(e.ObjectNew.GetFinalizers()) != len(e.ObjectOld.GetFinalizers())
	}
	return true
}}
