// Package lead has what both roles of neardns-controller (placement and zones) need: leader election between two replicas, a cache of
// Kubernetes objects, endpoints for health and metrics, and an event handler that maps every change to the same reconcile request.
//
// It guarantees that only the leader reconciles. If a replica loses the Lease, the manager returns an error and the program must exit;
// another replica takes over 15 to 24 s after the last renewal.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// These are controller-runtime's defaults. They are set here because tests and documents rely on the result: another replica takes over 15
// to 24 s after the leader's last renewal. (A standby looks at the Lease every 2 to 4.4 s, and waits 15 s after it has seen a renewal.)
var leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

// Options configure a role.
type Options struct {
	Lease     string // name of the Lease object for leader election
	Namespace string // namespace of the Lease
	Metrics   string // address on which /metrics is served
	Health    string // address on which /healthz and /readyz are served
	Kinds     []func(*runtime.Scheme) error
	Objects   map[client.Object]cache.ByObject // by kind: what restricts its watch cache, for example selectors and transforms
	Log       *slog.Logger
}

// New makes a controller-runtime manager. The manager's Start leads, or waits to lead, until its context ends. If it loses the Lease, Start
// returns an error, and the program must exit.
func New(config *rest.Config, o Options) (manager.Manager, error) {
	ctrl.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	scheme, err := Scheme(o.Kinds)
	if err != nil {
		return nil, err
	}
	m, err := ctrl.NewManager(config, manager.Options{
		Scheme: scheme, LeaderElection: true, LeaderElectionID: o.Lease, LeaderElectionNamespace: o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &leaseDuration, RenewDeadline: &renewDeadline, RetryPeriod: &retryPeriod,
		HealthProbeBindAddress: o.Health,
		Metrics:                metricsserver.Options{BindAddress: o.Metrics},
		Cache:                  cache.Options{ByObject: o.Objects},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the health check: %w", err)
	}
	// A leader is ready when it has read its objects. A standby reads none, so it is ready at once. A rollout waits until the replica
	// is ready.
	synced := func(r *http.Request) error {
		if !m.GetCache().WaitForCacheSync(r.Context()) {
			return errors.New("not all objects were read yet")
		}
		return nil
	}
	if err := m.AddReadyzCheck("objects", synced); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	return m, nil
}

// Retry returns options with which a controller retries after an error with a backoff of up to 10 s, the interval of both roles' polls:
// controller-runtime's 1000 s would also delay those polls, although the error may be of one object only.
func Retry() controller.Options {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](5*time.Millisecond, 10*time.Second)
	return controller.Options{RateLimiter: limiter}
}

// Scheme returns a scheme with the types of objects that a role reads and writes.
func Scheme(kinds []func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range kinds {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make the scheme: %w", err)
		}
	}
	return scheme, nil
}

// Once returns an event handler that maps every event to the same request, so that one reconcile run covers all changes that arrive
// before it starts.
func Once(name string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Name: name}}}
	})
}
