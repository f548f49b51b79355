package records

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
)

// gatewayKind is the kind Gateway. It is read as unstructured data, because its Go types are in a module that nothing else here needs.
var gatewayKind = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"}

// lookedUp is what a Gateway's status had when it was read at the time at.
type lookedUp struct {
	at     time.Time
	source zones.Source
}

// sources reads the objects that the records name in addressesFrom. Services come from the watch cache. Each Gateway is read every ten
// seconds instead, so that the service account needs no permission to list or watch, and clusters without the Gateway kind work too.
func (r *Reconciler) sources(ctx context.Context, records []v1alpha1.DNSRecord) (map[zones.Reference]zones.Source, error) {
	out, gateways := map[zones.Reference]zones.Source{}, map[client.ObjectKey]lookedUp{}
	for i := range records {
		from := records[i].Spec.AddressesFrom
		if from == nil || records[i].DeletionTimestamp != nil {
			continue
		}
		key := client.ObjectKey{Namespace: records[i].Namespace, Name: from.Name}
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
				out[reference] = serviceSource(&s)
			}
			continue
		}
		seen, ok := r.gateways[key]
		if !ok || r.Now().Sub(seen.at) >= lookAgain {
			source, err := r.gateway(ctx, key)
			if err != nil {
				return nil, err
			}
			seen = lookedUp{r.Now(), source}
		}
		gateways[key], out[reference] = seen, seen.source
	}
	r.gateways = gateways
	return out, nil
}

func serviceSource(s *corev1.Service) zones.Source {
	name := client.ObjectKeyFromObject(s)
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		problem := fmt.Sprintf("Service %s has type %s; only one of type LoadBalancer has addresses for others", name, s.Spec.Type)
		return zones.Source{Problem: problem}
	}
	var out zones.Source
	for _, i := range s.Status.LoadBalancer.Ingress {
		add(&out, i.IP, i.Hostname)
	}
	return whole(out, "Service "+name.String())
}

func (r *Reconciler) gateway(ctx context.Context, key client.ObjectKey) (zones.Source, error) {
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(gatewayKind)
	err := r.Direct.Get(ctx, key, g)
	switch {
	case meta.IsNoMatchError(err):
		return zones.Source{Problem: "this cluster knows no Gateway of " + gatewayKind.GroupVersion().String()}, nil
	case apierrors.IsNotFound(err):
		return zones.Source{Problem: fmt.Sprintf("there is no Gateway %s", key)}, nil
	case err != nil:
		return zones.Source{}, fmt.Errorf("read Gateway %s: %w", key, err)
	}
	return gatewaySource(g, key), nil
}

// gatewaySource takes the addresses from a Gateway's status.addresses. An entry without a type is an IPAddress, the API's default.
func gatewaySource(g *unstructured.Unstructured, key client.ObjectKey) zones.Source {
	var out zones.Source
	addresses, _, err := unstructured.NestedSlice(g.Object, "status", "addresses")
	if err != nil {
		return zones.Source{Problem: fmt.Sprintf("Gateway %s: %v", key, err)}
	}
	for _, a := range addresses {
		fields, _ := a.(map[string]any)
		value, _ := fields["value"].(string)
		if kind, _ := fields["type"].(string); kind == "Hostname" {
			add(&out, "", value)
		} else {
			add(&out, value, "")
		}
	}
	return whole(out, "Gateway "+key.String())
}

// add adds one address entry of an object's status. It drops an invalid IP address: only the program that wrote the status can correct
// it.
func add(s *zones.Source, ip, hostname string) {
	if a, err := netip.ParseAddr(ip); err == nil {
		s.Addresses = append(s.Addresses, a.Unmap())
	} else if hostname != "" && s.Hostname == "" {
		s.Hostname = hostname
	}
}

// whole completes a Source: it drops the hostname if there are addresses, because every DNS server can answer addresses; if there is
// neither, it sets Problem.
func whole(s zones.Source, name string) zones.Source {
	if len(s.Addresses) > 0 {
		s.Hostname = ""
	} else if s.Hostname == "" {
		s.Problem = name + " has no address yet"
	}
	return s
}
