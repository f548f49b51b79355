package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Pods is what the host's rules take from the pods of the node.
type Pods interface {
	// FallbackOnly are redirects that a pod still uses and the configuration no longer names.
	FallbackOnly(configured []steer.Redirect) []steer.Redirect
	// Locals are local addresses that a pod names and the configuration does not.
	Locals(configured []steer.Local, redirects []steer.Redirect) []steer.Local
	// HostInterfaces are the links by which steered pods' packets come.
	HostInterfaces() []string
	// OptedOut are the addresses of pods that must not be intercepted.
	OptedOut() []netip.Addr
}

// Uplinks finds the links from which nobody is served, as rules.Uplinks does; podSide are none of them.
type Uplinks func(podSide ...string) ([]string, error)

// Host describes the host's rules, beside the pods that there are; nil: none is known yet. This is the one description of them.
func (p Plan) Host(pods Pods, uplinks Uplinks) (steer.Host, error) {
	h := steer.Host{
		Redirects: p.Redirects, Locals: p.Locals, InterceptNode: p.InterceptNode, Lifetime: p.Terms.Lifetime,
		// Who names a local address by itself has no other way to kube-dns; a steered node's own processes name the cluster's.
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

// Catches tells whether a question of a process of the node itself may be caught by the host's rules, and so be answered by the
// agent. Then it tells nothing of kube-dns.
func (p Plan) Catches() bool { return p.InterceptNode || p.Arrangement != Steered }

// On is the plan by a back end's rules. It returns an error where they cannot do what the plan asks for.
func (p Plan) On(k rules.Kind) (Plan, error) {
	p.Backend = k.String()
	caps := k.Caps()
	if p.InterceptNode && !caps.Intercept {
		return p, fmt.Errorf("interceptNode: the %s back end, which this node needs, has no such rules: take it out", k)
	}
	p.Terms.Lifetime = caps.Lifetime(p.Terms.Lifetime)
	return p, nil
}
