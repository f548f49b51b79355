// Package zonewriter publishes one cluster's hosts in a DNS zone that other clusters write too. It reads the zone, plans the changes,
// sends them as updates, and reads the zone back.
//
// It guarantees that no cluster overwrites another's change, without a central writer and without a lock: a message has as prerequisites
// the records that must not have changed since it was planned. A host counts as programmed only after its records were read back.
//
// On failure it retries with backoff, and published records stay in the zone. The status of a host that cannot be written has the
// reason.
package zonewriter

import (
	"cmp"
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
	Zone     string // absolute, in lower case
	Server   string // the primary, host:port
	Key      rfc2136.KeyFunc
	Identity zone.Identity

	// Heartbeat is the interval (± 20 %) at which this cluster changes its heartbeat record. With 0 the cluster has no heartbeat, and other
	// clusters cannot see if it dies.
	Heartbeat time.Duration
	Remove    bool // remove the records of dead clusters; needs Heartbeat
	// Works reports whether at least one address of a dead cluster's claim may still work, by the claim's health check; then that host's
	// records are not removed. If Works is nil, no claim with a health check is removed.
	Works func(zone.Claim) bool

	// interval (± 20 %) of queries for the zone's serial; 0: 5 s or, with a Heartbeat below 15 s, Heartbeat/3. It becomes longer if the
	// server sends the whole zone for each change, and that takes long.
	Poll     time.Duration
	Validate time.Duration // interval (± 20 %) at which the whole zone is read; 0: 15 min
	Rate     float64       // maximum number of update messages per second; 0: no limit
	// maximum number of records in a transfer of the zone, whose bytes are limited to Records*rfc2136.Octets; 0: 100,000. A larger zone is
	// not read and not written.
	Records int

	// called by Run's goroutine, with the mutex held, when a host becomes programmed or left, and each time it is found in a conflict; must
	// neither block nor call the Publisher; may be nil
	Changed func(host string)
	Metrics *Metrics      // nil: no metrics
	Log     *slog.Logger  // nil: no log
	Timeout time.Duration // for connecting to the primary and for sending; 0: 5 s. An answer may take longer, see answerTime
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// Reasons of a Conflict, in addition to those of package zone. The Kinds of package rfc2136 are reasons too, for errors of the primary.
const (
	NotPermitted   = zone.Reason(rfc2136.NotPermitted)
	RecordsMissing = zone.Reason("RecordsMissing") // another program keeps deleting or changing this cluster's records
	Contended      = zone.Reason("Contended")      // other clusters changed the same records at each try; retried after a pause
)

// Status is the status of one host.
type Status struct {
	Host       string
	Programmed bool // the zone has what is wanted, confirmed by reading it back
	// Remove was called, and the zone has nothing of this cluster for the host, confirmed by reading it back
	Left bool
	// why the zone is not as wanted, or nil. With a reason of package zone, nothing is written for the host; with others, writing is retried
	// after pauses.
	Conflict   *zone.Conflict
	Attempt    int       // how often the host was found to have Conflict; a new reason begins at 1
	Since      time.Time // when Conflict began, with its present reason
	Notes      []zone.Conflict
	Unserved   []netip.Addr // addresses that do not fit into the host's RRset
	Generation uint64       // the highest version number of this cluster's claim (TXT record) for the host, in the zone or in a message
	Writes     uint64       // number of changes of this host that the primary accepted
	Messages   uint64       // number of messages with a change of this host, whatever their result
	Held       *zone.Host   // what the zone has for the host; nil: no cluster publishes it, or the zone was not read yet
}

// ZoneStatus is the status of the zone.
type ZoneStatus struct {
	State  *zone.State              // the zone as it was last read; nil: never
	Read   time.Time                // the last time at which State was known to be current
	Err    error                    // why the zone cannot be read now, or nil
	Silent map[string]time.Duration // by cluster: for how long its heartbeat has not changed
	Dead   []string                 // the clusters that are silent, by zone.Watch and zone.ReportAfter
}

// Publisher writes one cluster's records into one zone. Its methods are safe for concurrent use. Call Run once.
type Publisher struct {
	o      Options
	client *rfc2136.Client
	wake   tick.Chan
	shared

	// Only Run's goroutine uses the fields below.
	state  *zone.State
	watch  zone.Watch
	beat   beat
	latest string // name of the TXT record (claim) that this process wrote or deleted last, confirmed by reading it back; empty: none
	limit  limit
	ailing ailing
	next   struct{ poll, whole time.Time } // when the zone is to be read next, and when to be read as a whole
	seen   size                            // records of the last whole transfer, and of all changes since
	// how long the last incremental transfer took if the server sent the whole zone instead; else 0
	cost     time.Duration
	busy     int       // number of SERVFAIL answers to updates since the last accepted one, at most passing
	failures int       // number of reads in a row that failed
	sent     time.Time // when the last update was sent
	removal  time.Time // remove no dead cluster before this time
	// until this time, missing records do not count as deleted by another program: other clusters may have removed this one as dead
	excused time.Time
}

// shared has the fields that callers' goroutines use too.
type shared struct {
	mu    sync.Mutex // guards the fields below
	hosts map[string]*host
	zone  ZoneStatus
	moved chan struct{} // closed, and replaced by a new one, when hosts' statuses may have changed
}

// host is the state of one host. The mutex guards want, set and status.
type host struct {
	want   zone.Publication // what this cluster is to publish; if empty, the cluster is to be removed from the host
	set    int              // number of changes of want
	status Status

	memory  zone.Memory
	seen    int       // value of set that was last sent, or found to need no message or to have a conflict
	next    time.Time // send nothing for this host before this time
	repairs int       // how often records were found missing or changed since Set, or since they stayed for longer than Validate
	stable  time.Time // when the host was last found to be as wanted after a change or conflict
	drops   int       // number of messages in a row that failed, or that the server applied only in part
	taken   int       // number of accepted messages since the host was last found to be as wanted
}

// New returns a publisher, which does nothing before Run is called. It returns an error if Zone, Identity or Heartbeat is invalid.
func New(o Options) (*Publisher, error) {
	if err := errors.Join(zone.CheckOrigin(o.Zone), o.Identity.Validate()); err != nil {
		return nil, fmt.Errorf("publish in %s: %w", o.Zone, err)
	}
	if o.Heartbeat != 0 && (o.Heartbeat < time.Second || o.Heartbeat > zone.MaxPeriod) {
		return nil, fmt.Errorf("publish in %s: a heartbeat every %s is not within 1 s and %s", o.Zone, o.Heartbeat, zone.MaxPeriod)
	}
	if o.Poll == 0 {
		o.Poll = 5 * time.Second
		if o.Heartbeat > 0 { // with slower polls, the publisher would see too late that a heartbeat has stopped
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
		client: &rfc2136.Client{Server: o.Server, Zone: o.Zone, Key: o.Key, Timeout: o.Timeout, Answer: o.answerTime(),
			Dial: o.Dial, Most: o.Records}}, nil
}

// answerTime limits how long a message of an answer may take: six times Timeout. A busy primary carries out an update whose sender has
// gone, so a sender that soon repeats what it abandoned makes the primary busier. A hang must not make heartbeats late: each
// message of it costs Timeout or a tenth of their interval.
func (o Options) answerTime() time.Duration {
	timeout := cmp.Or(o.Timeout, rfc2136.DefaultTimeout)
	if o.Heartbeat == 0 {
		return 6 * timeout
	}
	return max(timeout, min(6*timeout, o.Heartbeat/10))
}

// Set makes Run publish a host, in place of the host's previous publication. For an invalid publication, Set returns an error and changes
// nothing. It may be called before Run. Setting an equal publication again does nothing.
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

// Remove makes Run remove this cluster from a host. Status.Left is true once the zone has nothing of the cluster for the host any more.
func (p *Publisher) Remove(name string) {
	p.want(zone.Publication{Host: zone.Publication{Host: name}.Normal().Host})
}

// Forget stops managing a host. Its records stay in the zone.
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

// Status returns the status of a host, or false if neither Set nor Remove was called for it, or Forget was called since.
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

// Settle waits until each host is programmed, left or in a conflict other than Contended. It returns the statuses of the hosts in conflict,
// sorted by host. Run must be running.
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

// about returns a random duration within 20 % of d, so that clusters that start at the same time do not keep acting at the same time.
func about(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter needs no secrecy
}
