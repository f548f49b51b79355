package records

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// probe configures the health checks of all hosts, and records since when their addresses are unhealthy.
func (r *Reconciler) probe(plan *zones.Plan, dnsZones []v1alpha1.DNSZone) {
	now, known := r.Now(), map[healthcheck.Check]bool{}
	for i := range dnsZones {
		z := &dnsZones[i]
		var checks []healthcheck.Check
		for _, p := range plan.Zones[z.Name].Hosts {
			checks = append(checks, checksOf(&p)...)
		}
		var ranges []netip.Prefix
		for _, b := range z.Spec.Publishers {
			for _, t := range b.Targets {
				if p, err := netip.ParsePrefix(string(t)); err == nil {
					ranges = append(ranges, p)
				}
			}
		}
		if o := r.open[z.Name]; o != nil {
			o.mu.Lock()
			o.ranges = ranges
			o.mu.Unlock()
		}
		for check, target := range r.Health.Set(z.Name, map[string][]healthcheck.Check{r.ClusterID: checks}, ranges) {
			known[check] = true
			if target.Well() {
				delete(r.sick, check)
			} else if _, ok := r.sick[check]; !ok {
				r.sick[check] = now
			}
		}
	}
	maps.DeleteFunc(r.sick, func(check healthcheck.Check, _ time.Time) bool { return !known[check] })
}

func checksOf(p *zone.Publication) (out []healthcheck.Check) {
	for _, a := range p.Addresses {
		if check, ok := healthcheck.Of(p.Host, a, p.Health); ok {
			out = append(out, check)
		}
	}
	return out
}

// worksFor returns the function that a publisher calls before it removes a dead cluster's records of a host. That function returns true if
// at least one address of the claim may still work, and then the records stay. Such an address passes its health check, or has not failed
// three probes yet, or is not probed, for example because it is outside the zone's ranges or a host name. Without a health check it returns
// false.
func (r *Reconciler) worksFor(dnsZone string, o *opened) func(zone.Claim) bool {
	return func(c zone.Claim) bool {
		key := "dead " + dnsZone + " " + c.Cluster + " " + c.Host
		o.mu.Lock()
		defer o.mu.Unlock()
		o.dead[key] = time.Now()
		checks := checksOf(&c.Publication)
		asked := r.Health.Set(key, map[string][]healthcheck.Check{c.Cluster: checks}, o.ranges)
		unprobed := c.Health != nil && len(checks) == 0
		return unprobed || slices.ContainsFunc(checks, func(check healthcheck.Check) bool { return asked[check].Well() })
	}
}

// deadFor is for how long a dead cluster's addresses are probed after a publisher last called the function that worksFor returns.
const deadFor = 10 * time.Minute

// bury ends the health checks of dead clusters' addresses for which the publisher of o has not called works for deadFor. With all set, it
// ends all of them.
func (r *Reconciler) bury(o *opened, all bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, at := range o.dead {
		if all || time.Since(at) > deadFor {
			r.Health.Set(key, nil, nil)
			delete(o.dead, key)
		}
	}
}
