// Package lead is what the roles of neardns-controller have in common: two replicas of which one leads, a cache of objects, health and
// metrics, and one thing to do whatever changed.
package lead

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// client-go's defaults, set here as tests and docs count on them: another replica leads 15 to 17 s after the leader's last renewal.
var leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

// Options are a role's.
type Options struct {
	Lease     string // the name of the Lease by which one replica leads
	Namespace string // of the Lease
	Metrics   string // address
	Health    string // address
	Kinds     []func(*runtime.Scheme) error
	Objects   map[client.Object]cache.ByObject // of which kinds only a part is kept
	Log       *slog.Logger
}

// New makes a manager. Its Start leads, or waits to, until its context ends; it returns an error where the lead is lost, and the program
// has to end then.
func New(config *rest.Config, o Options) (manager.Manager, error) {
	ctrl.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	scheme, err := Scheme(o.Kinds)
	if err != nil {
		return nil, err
	}
	m, err := ctrl.NewManager(config, manager.Options{
		Scheme: scheme, LeaderElection: true, LeaderElectionID: o.Lease, LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &leaseDuration, RenewDeadline: &renewDeadline, RetryPeriod: &retryPeriod,
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
	return m, nil
}

// Scheme knows the kinds of objects that a role reads and writes.
func Scheme(kinds []func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range kinds {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make the scheme: %w", err)
		}
	}
	return scheme, nil
}

// Once has one request made of whatever changed: a role looks at everything, and what came meanwhile is looked at with it.
func Once(name string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Name: name}}}
	})
}
