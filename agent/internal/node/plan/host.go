package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Pods are the facts about the node's pods that the host's rules depend on.
type Pods interface {
	// FallbackOnly are redirects that a pod still uses and the configuration no longer has.
	FallbackOnly(configured []steer.Redirect) []steer.Redirect
	// Locals are local addresses that a pod uses and the configuration does not have.
	Locals(configured []steer.Local, redirects []steer.Redirect) []steer.Local
	// HostInterfaces are the links on which steered pods' packets arrive.
	HostInterfaces() []string
	// OptedOut are the addresses of pods that must not be intercepted.
	OptedOut() []netip.Addr
}

// Uplinks finds the links from which no client is served, as rules.Uplinks does. The links in podSide are not among them.
type Uplinks func(podSide ...string) ([]string, error)

// Host describes the host's rules for the plan and the node's pods. With nil, no pod is known yet. It is the only description of the rules.
func (p Plan) Host(pods Pods, uplinks Uplinks) (steer.Host, error) {
	h := steer.Host{
		Redirects: p.Redirects, Locals: p.Locals, InterceptNode: p.InterceptNode, Lifetime: p.Terms.Lifetime,
		// Clients that use a local address have no other path to kube-dns. On a steered node, the node's own processes use the cluster DNS
		// address.
		OwnLocals: p.Arrangement != Steered, HealthPort: p.HealthPort,
	}
	if p.Arrangement == NodeCache {
		h.Ceded = p.LocalAddresses()
	}
	var podSide []string
	if pods != nil {
		podSide = pods.HostInterfaces()
		h.FallbackOnly, h.Exempt = pods.FallbackOnly(p.Redirects), pods.OptedOut()
		h.Locals = slices.Concat(h.Locals, pods.Locals(p.Locals, slices.Concat(p.Redirects, h.FallbackOnly)))
	}
	var err error
	h.Uplinks, err = uplinks(podSide...)
	return h, err
}

// InterceptsNode reports whether the host's rules may send a query of the node's own processes to the agent. The answer then shows nothing
// about kube-dns.
func (p Plan) InterceptsNode() bool { return p.InterceptNode || p.Arrangement != Steered }

// ForBackend is the plan for a back end's rules. It returns an error if they do not support what the plan needs.
func (p Plan) ForBackend(k rules.Kind) (Plan, error) {
	p.Backend = k.String()
	caps := k.Caps()
	if p.InterceptNode && !caps.Intercept {
		return p, fmt.Errorf("interceptNode: the %s back end, which this node needs, has no such rules: take it out", k)
	}
	p.Terms.Lifetime = caps.Lifetime(p.Terms.Lifetime)
	return p, nil
}
