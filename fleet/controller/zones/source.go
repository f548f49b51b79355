package zones

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// GatewayKind is the kind Gateway. It is read as unstructured data, because its Go types are in a module that nothing else here needs.
var GatewayKind = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "Gateway"}

// Gateway has the listeners of a Gateway object. Problem is why there are none; otherwise it is empty.
type Gateway struct {
	Listeners []Listener
	Problem   string
	Unread    bool // the object could not be read; Problem has the error
}

// Listener is one listener of a Gateway. Host is empty if the listener has no hostname.
type Listener struct{ Name, Host string }

// ReadGateway takes the listeners from a Gateway's spec, and the addresses or the hostname from its status. An address without a type is an
// IPAddress, the API's default.
func ReadGateway(g *unstructured.Unstructured) (out Gateway, source Source) {
	name := types.NamespacedName{Namespace: g.GetNamespace(), Name: g.GetName()}
	items, _, err := unstructured.NestedSlice(g.Object, "spec", "listeners")
	if err != nil {
		out.Problem = fmt.Sprintf("Gateway %s: %v", name, err)
	}
	for _, item := range items {
		fields, _ := item.(map[string]any)
		listener, _ := fields["name"].(string)
		host, _ := fields["hostname"].(string)
		out.Listeners = append(out.Listeners, Listener{listener, host})
	}
	addresses, _, err := unstructured.NestedSlice(g.Object, "status", "addresses")
	if err != nil {
		return out, Source{Problem: fmt.Sprintf("Gateway %s: %v", name, err)}
	}
	for _, a := range addresses {
		fields, _ := a.(map[string]any)
		value, _ := fields["value"].(string)
		if kind, _ := fields["type"].(string); kind == "Hostname" {
			source.add("", value)
		} else {
			source.add(value, "")
		}
	}
	return out, source.whole("Gateway " + name.String())
}

// ServiceSource takes the addresses, or the hostname, from a Service's status.
func ServiceSource(s *corev1.Service) Source {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		problem := fmt.Sprintf("Service %s has type %s; only one of type LoadBalancer has addresses for others", name, s.Spec.Type)
		return Source{Problem: problem}
	}
	var out Source
	for _, i := range s.Status.LoadBalancer.Ingress {
		out.add(i.IP, i.Hostname)
	}
	return out.whole("Service " + name.String())
}

// add adds one entry of an object's status, an address or a hostname. It drops an invalid IP address, because only the program that wrote
// the status can correct it. Of several hostnames it takes the first.
func (s *Source) add(ip, hostname string) {
	if a, err := netip.ParseAddr(ip); err == nil {
		s.Addresses = append(s.Addresses, a.Unmap())
	} else if hostname != "" && s.Hostname == "" {
		s.Hostname = hostname
	}
}

// whole completes a Source: if it has addresses, whole drops the hostname, because every DNS server can answer with addresses; if it has
// neither, whole sets Problem.
func (s Source) whole(name string) Source {
	if len(s.Addresses) > 0 {
		s.Hostname = ""
	} else if s.Hostname == "" {
		s.Problem = name + " has no address yet"
	}
	return s
}
