package records

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
)

// lookedUp is what a Gateway had at the time at, when it was read.
type lookedUp struct {
	at      time.Time
	source  zones.Source
	gateway zones.Gateway
}

// sources reads the objects that the records name in addressesFrom. Services come from the watch cache.
func (r *Reconciler) sources(ctx context.Context, records []v1alpha1.DNSRecord) (map[zones.Reference]zones.Source, error) {
	out := map[zones.Reference]zones.Source{}
	for i := range records {
		from := records[i].Spec.AddressesFrom
		if from == nil || records[i].DeletionTimestamp != nil {
			continue
		}
		key := client.ObjectKey{Namespace: records[i].Namespace, Name: string(from.Name)}
		reference := zones.Reference{Namespace: key.Namespace, Kind: from.Kind, Name: key.Name}
		if _, ok := out[reference]; ok {
			continue
		}
		if from.Kind == "Service" {
			var s corev1.Service
			if err := r.Client.Get(ctx, key, &s); apierrors.IsNotFound(err) {
				out[reference] = zones.Source{Problem: fmt.Sprintf("there is no Service %s", key)}
			} else if err != nil {
				return nil, fmt.Errorf("read Service %s: %w", key, err)
			} else {
				out[reference] = zones.ServiceSource(&s)
			}
			continue
		}
		out[reference] = r.gateway(ctx, key).source
	}
	return out, nil
}

// gateway reads a Gateway from the API server, and uses the result for ten seconds. It does not use the watch cache, so that the service
// account needs no permission to list or watch, and clusters without the Gateway kind work too.
func (r *Reconciler) gateway(ctx context.Context, key client.ObjectKey) lookedUp {
	if seen, ok := r.gateways[key]; ok {
		return seen
	}
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(zones.GatewayKind)
	err := r.Direct.Get(ctx, key, g)
	problem, unread := "", false
	switch {
	case meta.IsNoMatchError(err):
		problem = "this cluster knows no Gateway of " + zones.GatewayKind.GroupVersion().String()
	// The 404 of a proxy, or of an API server that does not serve the kind, has this cause, and must not remove hosts.
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		problem = fmt.Sprintf("there is no Gateway %s", key)
	case err != nil:
		problem, unread = fmt.Sprintf("cannot read Gateway %s: %v", key, err), true
	}
	seen := lookedUp{r.Now(), zones.Source{Problem: problem, Unread: unread}, zones.Gateway{Problem: problem, Unread: unread}}
	if problem == "" {
		seen.gateway, seen.source = zones.ReadGateway(g)
	}
	r.gateways[key] = seen
	return seen
}
