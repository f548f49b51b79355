package records

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
)

// open is a function for Reconciler.Open, which describes its arguments.
type open func(Setting, rfc2136.KeyFunc, func(zone.Claim) bool) (Publisher, error)

// opener returns the function that starts this cluster's publisher for a zone. The publisher calls changed when a host becomes programmed
// or left, and each time it is found in a conflict; changed must not block.
func opener(ctx context.Context, identity zone.Identity, metrics *zonewriter.Metrics, log *slog.Logger, changed func()) open {
	return func(s Setting, key rfc2136.KeyFunc, works func(zone.Claim) bool) (Publisher, error) {
		p, err := zonewriter.New(zonewriter.Options{
			Zone: s.Zone, Server: s.Primary, Key: key, Identity: identity, Heartbeat: s.Heartbeat, Remove: s.Remove, Works: works,
			Rate: float64(s.PerMinute) / 60, Changed: func(string) { changed() }, Metrics: metrics, Log: log,
		})
		if err != nil {
			return nil, err
		}
		running, cancel := context.WithCancel(ctx)
		l := &live{publisher: p, log: log, cancel: cancel, fresh: 2 * s.Heartbeat}
		l.wg.Go(func() { p.Run(running) }) // ends with Stop, or with ctx
		return l, nil
	}
}

// live is a running publisher.
type live struct {
	publisher *zonewriter.Publisher
	log       *slog.Logger
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	// for how long the last read of the zone counts as current: two heartbeat periods. Other clusters wait longer than that before they
	// remove this cluster's addresses.
	fresh time.Duration
}

func (l *live) Set(p zone.Publication) {
	if err := l.publisher.Set(p); err != nil { // zones.Decide has validated it
		l.log.Error("a host's new records are invalid; its earlier ones, if any, stay published", "host", p.Host, "error", err)
	}
}

func (l *live) Remove(host string) { l.publisher.Remove(host) }
func (l *live) Forget(host string) { l.publisher.Forget(host) }

func (l *live) Stop() {
	l.cancel()
	l.wg.Wait()
}

func (l *live) Host(host string) zones.Progress {
	s, ok := l.publisher.Status(host)
	if !ok {
		return zones.Progress{}
	}
	z := l.publisher.Zone()
	p := progress(&s, z.Err)
	p.Read, p.Fresh = z.Read, l.fresh
	return p
}

// disputes are the reasons that are reported in the condition UnresolvedConflictDiscovered.
var disputes = []zone.Reason{zone.ConflictingStrategy, zone.ConflictingTTL, zone.ConflictingName, zone.ClusterIDInUse,
	zone.ConflictingDefault, zone.ZoneRolledBack, zonewriter.RecordsMissing, zonewriter.Contended}

// progress converts a publisher's status of a host to the input of zones.Conditions. away is why the zone cannot be read now, or nil.
func progress(s *zonewriter.Status, away error) zones.Progress {
	p := zones.Progress{Done: s.Programmed || s.Left, Attempt: s.Attempt, Since: s.Since, Generation: s.Generation, Writes: s.Writes}
	if away != nil {
		p.Away = reasonOf(away)
	}
	if c := s.Conflict; c != nil {
		p.Reason, p.Message = string(c.Reason), c.Message
		if slices.Contains(disputes, c.Reason) {
			p.Conflict, p.ConflictMessage = string(c.Reason), c.Message
		}
	} else if !p.Done && away != nil {
		p.Reason, p.Message = p.Away, away.Error()
	}
	for _, n := range s.Notes {
		if slices.Contains(disputes, n.Reason) {
			if p.Conflict == "" {
				p.Conflict, p.ConflictMessage = string(n.Reason), n.Message
			}
		} else if p.Done {
			p.Note, p.NoteMessage = string(n.Reason), n.Message
		}
	}
	if h := s.Held; h != nil {
		p.Owners = h.Owners
		p.Held = &v1alpha1.Published{Strategy: v1alpha1.Strategy(h.Strategy), TTL: int32(h.TTL), Addresses: texts(h.Addresses)}
	}
	return p
}

func texts(addresses []netip.Addr) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = a.String()
	}
	return out
}

// reasonOf returns the reason, for a condition, of an error in reading the zone.
func reasonOf(err error) string {
	if kind := rfc2136.KindOf(err); kind != "" {
		return string(kind)
	}
	return zones.NotReadable
}

func (l *live) Zone() ZoneProgress {
	z := l.publisher.Zone()
	p := ZoneProgress{Read: z.Read, Silent: slices.Sorted(slices.Values(z.Dead))}
	if z.Err != nil {
		p.Reason, p.Message = reasonOf(z.Err), fmt.Sprint(z.Err)
	}
	if z.State != nil {
		clusters := map[string]bool{}
		for cluster := range z.State.Beats {
			clusters[cluster] = true
		}
		for _, h := range z.State.Hosts {
			for _, owner := range h.Owners {
				clusters[owner] = true
			}
		}
		p.Clusters = slices.Sorted(maps.Keys(clusters))
	}
	return p
}
