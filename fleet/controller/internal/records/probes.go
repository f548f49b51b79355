package records

import (
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// probe configures the health checks of all hosts, and removes from the plan the addresses that have failed for withdrawAfter.
func (r *Reconciler) probe(plan *zones.Plan, dnsZones []v1alpha1.DNSZone) {
	now, known := r.Now(), map[healthcheck.Check]bool{}
	for i := range dnsZones {
		z := &dnsZones[i]
		hosts := plan.Zones[z.Name].Hosts
		var checks []healthcheck.Check
		for _, p := range hosts {
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
		for host, p := range hosts {
			hosts[host] = zones.WithoutSick(p, func(a netip.Addr) bool {
				since, ok := r.sick[checkOf(&p, a)]
				return ok && now.Sub(since) >= withdrawAfter
			})
		}
	}
	maps.DeleteFunc(r.sick, func(check healthcheck.Check, _ time.Time) bool { return !known[check] })
}

func checksOf(p *zone.Publication) (out []healthcheck.Check) {
	if p.Health == nil {
		return nil
	}
	for _, a := range p.Addresses {
		out = append(out, checkOf(p, a))
	}
	return out
}

func checkOf(p *zone.Publication, a netip.Addr) healthcheck.Check {
	if p.Health == nil {
		return healthcheck.Check{}
	}
	c := healthcheck.Check{Address: a, Protocol: healthcheck.Protocol(p.Health.Protocol), Port: p.Health.Port, Path: p.Health.Path}
	if c.Protocol != healthcheck.TCP {
		c.Host = strings.TrimSuffix(p.Health.Host, ".")
		if c.Host == "" {
			c.Host = strings.TrimSuffix(strings.TrimPrefix(p.Host, "*."), ".") // as edges do
		}
	}
	return c
}
