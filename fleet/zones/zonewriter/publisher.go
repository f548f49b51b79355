// Package zonewriter publishes one cluster's hosts in one DNS zone that other clusters write too: it reads the zone, plans, sends
// updates, and reads them back.
//
// It guarantees that no cluster overwrites another's change, without a central writer and without a lock: each message carries what it
// was planned on as prerequisites, and a host counts as programmed only after its records were read back.
//
// On failure it retries with backoff, and what is published stays in the zone. A host that cannot be written has a status with the
// reason.
package zonewriter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/tick"
)

// Options configure a Publisher. Zone, Server and Identity are required.
type Options struct {
	Zone     string // absolute
	Server   string // the primary, host:port
	Key      func() rfc2136.Key
	Identity zone.Identity

	// Heartbeat is how often the heartbeat changes, ± 20 %. 0: there is none, so other clusters cannot detect that this one is dead.
	Heartbeat time.Duration
	Remove    bool // remove dead clusters
	// Works reports whether an address of a dead cluster passes its health check; nil: clusters with a health check stay.
	Works func(zone.Claim) bool

	Poll     time.Duration // between queries for the serial, ± 20 %; 0: 5 s, or Heartbeat/3; longer if reads are expensive
	Validate time.Duration // interval between reads of the whole zone, ± 20 %; 0: 15 min
	Rate     float64       // update messages per second; 0: no limit
	Records  int           // maximum of the zone, each of rfc2136.Octets on average; 0: 100,000; a larger zone is left alone

	Changed func(host string) // the status of a host changed. Run's goroutine calls it; it must not block. nil: no call
	Metrics *Metrics          // nil: no metrics
	Log     *slog.Logger      // nil: no log
	Timeout time.Duration     // for each answer; 0: 5 s
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// Reasons in addition to those of package zone. Errors of the primary have package rfc2136's kinds as reasons.
const (
	NotPermitted   = zone.Reason(rfc2136.NotPermitted)
	RecordsMissing = zone.Reason("RecordsMissing") // another program deletes the cluster's records repeatedly
	Contended      = zone.Reason("Contended")      // other clusters changed the same records on each try; the next try follows after a pause
)

// Status describes one host.
type Status struct {
	Host       string
	Programmed bool           // the zone is as wanted, confirmed by reading it back
	Left       bool           // Remove was called and the zone has nothing of this cluster, confirmed by reading it back
	Conflict   *zone.Conflict // why the host is not as wanted, or nil; stops writes if of package zone, else slows them
	Attempt    int            // messages and reads since the reason appeared
	Since      time.Time      // when the reason appeared
	Notes      []zone.Conflict
	Unserved   []netip.Addr // addresses that the host has no room for
	Generation uint64       // of the claim
	Writes     uint64       // changes of this host that the primary accepted
	Messages   uint64       // messages with changes of this host that were sent
	Held       *zone.Host   // what the zone holds; nil: no cluster publishes the host, or the zone was not read yet
}

// ZoneStatus describes the zone.
type ZoneStatus struct {
	State  *zone.State              // as read last; nil: never
	Read   time.Time                // when State was last confirmed to be current
	Err    error                    // why the zone cannot be read now, or nil
	Silent map[string]time.Duration // how long the heartbeat of each cluster with one has not changed
	Dead   []string                 // clusters that are silent for more than three of their periods
}

// Publisher is one cluster's writer of one zone. Its methods are safe for concurrent use. Call Run once.
type Publisher struct {
	o      Options
	client *rfc2136.Client
	wake   tick.Chan
	shared

	// The fields below are used by Run only.
	state    *zone.State
	watch    zone.Watch
	beat     beat
	latest   string // the name of the claim that was written last
	limit    limit
	ailing   ailing
	next     struct{ poll, whole time.Time }
	seen     size          // of the last whole zone and of all changes read since
	cost     time.Duration // of reading the last change, if the server sent the whole zone for it; 0: it sends changes
	busy     int           // SERVFAILs in a row
	failures int           // reads and messages without an answer, in a row
	sent     time.Time
	removal  time.Time // remove no dead cluster before this time
	excused  time.Time // until then, missing records were deleted by clusters that considered this one dead
}

// shared has the fields that callers use as well.
type shared struct {
	mu    sync.Mutex // protects the fields below
	hosts map[string]*host
	zone  ZoneStatus
	moved chan struct{} // closed each time a status changes
}

// host is the state of one host. The mutex protects want, set and status.
type host struct {
	want   zone.Publication // if empty, the cluster leaves
	set    int              // increases with each Set and Remove
	status Status

	memory  zone.Memory
	seen    int       // the value of set at the last plan
	next    time.Time // send nothing before this time
	repairs int       // how often the records of the programmed host were missing recently
	stable  time.Time // since when it is programmed
	drops   int       // messages in a row that the server refused or carried out only in part
	taken   int       // messages in a row that were accepted in full but left more to do
}

// New makes a publisher. It does nothing before Run is called.
func New(o Options) (*Publisher, error) {
	o.Zone = zone.Publication{Host: o.Zone}.Normal().Host
	if err := errors.Join(zone.CheckOrigin(o.Zone), o.Identity.Validate()); err != nil {
		return nil, fmt.Errorf("publish in %s: %w", o.Zone, err)
	}
	if o.Heartbeat != 0 && (o.Heartbeat < time.Second || o.Heartbeat > zone.MaxPeriod) {
		return nil, fmt.Errorf("publish in %s: a heartbeat every %s is not within 1 s and %s", o.Zone, o.Heartbeat, zone.MaxPeriod)
	}
	if o.Poll == 0 {
		o.Poll = 5 * time.Second
		if o.Heartbeat > 0 { // a slower poll could not detect that a heartbeat has stopped
			o.Poll = min(o.Poll, o.Heartbeat/3)
		}
	}
	if o.Validate == 0 {
		o.Validate = 15 * time.Minute
	}
	if o.Records == 0 {
		o.Records = mostRecords
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	start := barred
	if o.Heartbeat > 0 {
		start = started
	}
	o.Log = o.Log.With("zone", o.Zone, "cluster", o.Identity.Cluster)
	return &Publisher{o: o, beat: beat{fence: start}, wake: tick.New(), shared: shared{hosts: map[string]*host{}, moved: make(chan struct{})},
		client: &rfc2136.Client{Server: o.Server, Zone: o.Zone, Key: o.Key, Timeout: o.Timeout, Dial: o.Dial, Most: o.Records}}, nil
}

// Set publishes pub for its host. If pub is invalid it returns an error and changes nothing. You may call it at any time, also before
// Run. Setting the same publication again has no effect.
func (p *Publisher) Set(pub zone.Publication) error {
	pub = pub.Normal()
	if pub.Empty() {
		return fmt.Errorf("publish %s: neither an address nor a target", pub.Host)
	}
	if err := pub.Validate(p.o.Zone); err != nil {
		return fmt.Errorf("publish %s: %w", pub.Host, err)
	}
	p.want(pub)
	return nil
}

// Remove makes the cluster leave a host. Status reports when nothing of the cluster is left.
func (p *Publisher) Remove(name string) {
	p.want(zone.Publication{Host: zone.Publication{Host: name}.Normal().Host})
}

// Forget stops managing a host: its records stay in the zone, and this publisher no longer changes them.
func (p *Publisher) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.hosts, zone.Publication{Host: name}.Normal().Host)
}

func (p *Publisher) want(pub zone.Publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[pub.Host]
	if h == nil {
		h = &host{status: Status{Host: pub.Host}}
		p.hosts[pub.Host] = h
	} else if equal(h.want, pub) {
		return
	}
	h.want = pub
	h.set++
	old := &h.status
	h.status = Status{Host: pub.Host, Generation: old.Generation, Writes: old.Writes, Messages: old.Messages, Held: old.Held}
	p.o.Metrics.spec(p.o.Zone)
	p.wake.Send()
}

func equal(a, b zone.Publication) bool {
	if (a.Health == nil) != (b.Health == nil) || a.Health != nil && *a.Health != *b.Health {
		return false
	}
	same := slices.Equal(a.Addresses, b.Addresses)
	a.Addresses, b.Addresses, a.Health, b.Health = nil, nil, nil, nil
	return same && a.Host == b.Host && a.Strategy == b.Strategy && a.TTL == b.TTL && a.Target == b.Target && a.Geo == b.Geo &&
		a.DefaultGeo == b.DefaultGeo && a.Weight == b.Weight && a.Adopt == b.Adopt
}

// Status returns the status of a host; false if Set and Remove were never called for it.
func (p *Publisher) Status(name string) (Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[zone.Publication{Host: name}.Normal().Host]
	if h == nil {
		return Status{}, false
	}
	return h.status, true
}

// Zone returns the status of the zone.
func (p *Publisher) Zone() ZoneStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.zone
}

// Settle waits until each host is programmed, left or in conflict. It returns the hosts in conflict, sorted. Run must be running.
func (p *Publisher) Settle(ctx context.Context) ([]Status, error) {
	for {
		p.mu.Lock()
		settled, conflicts, moved := true, []Status(nil), p.moved
		for _, h := range p.hosts {
			s := h.status
			settled = settled && (s.Programmed || s.Left || s.Conflict != nil && s.Conflict.Reason != Contended)
			if s.Conflict != nil {
				conflicts = append(conflicts, s)
			}
		}
		err := p.zone.Err
		p.mu.Unlock()
		if settled {
			slices.SortFunc(conflicts, func(a, b Status) int { return compare(a.Host, b.Host) })
			return conflicts, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until %s is as it should be: %w", p.o.Zone, errors.Join(ctx.Err(), err))
		case <-moved:
		}
	}
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// about returns d ± 20 %, so that clusters that started together do not stay synchronized.
func about(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter needs no secrecy
}
