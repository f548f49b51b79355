// Package zonewriter keeps one cluster's part of one zone as it should be: it reads the zone, plans, sends, and reads back, beside any number
// of other clusters that do the same. There is no hub and no lock; each message carries what it was planned on as prerequisites.
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

// Options are what a Publisher is made of. Zone, Server and Identity are needed.
type Options struct {
	Zone     string // absolute
	Server   string // the primary, host:port
	Key      func() rfc2136.Key
	Identity zone.Identity

	Heartbeat time.Duration         // how often the heartbeat changes, ± 20 %; 0: none, and nobody can tell that the cluster is dead
	Remove    bool                  // remove clusters that are dead
	Works     func(zone.Claim) bool // reports whether an address of a dead cluster passes its health check; nil: those with one stay

	Poll     time.Duration // how often the primary is asked for its serial, ± 20 %; 0: 5 s, or a third of Heartbeat. More rarely where that costs much
	Validate time.Duration // how often the whole zone is read, ± 20 %; 0: 15 min
	Rate     float64       // messages a second that change the zone; 0: no bound
	Records  int           // that the zone may have, each of ddns.Octets in the mean; 0: 100,000. A larger one is not read, nor written

	Changed func(host string) // the status of a host changed; called by Run's goroutine, must not block; nil: nobody is told
	Metrics *Metrics          // nil: nothing is counted
	Log     *slog.Logger      // nil: no log
	Timeout time.Duration     // of each answer; 0: 5 s
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// Reasons beside zone's, why a host is not as it should be. Those of the primary are ddns's kinds.
const (
	NotPermitted   = zone.Reason(rfc2136.NotPermitted)
	RecordsMissing = zone.Reason("RecordsMissing") // somebody takes the cluster's records away again and again
	Contended      = zone.Reason("Contended")      // others changed the same each time: it goes on after a pause
)

// Status is what is known of one host.
type Status struct {
	Host       string
	Programmed bool           // the zone says what it should; read back
	Left       bool           // Remove was called, and nothing of the cluster is in the zone; read back
	Conflict   *zone.Conflict // why not, or nil; while it stands nothing is written for a conflict of zone's, and rarely for others
	Attempt    int            // messages and looks at the zone since the reason came up
	Since      time.Time      // when the reason came up
	Notes      []zone.Conflict
	Unserved   []netip.Addr // not at the host for want of room
	Generation uint64       // of the claim
	Writes     uint64       // changes of this host that the primary took
	Messages   uint64       // messages with changes of this host that were sent
	Held       *zone.Host   // what the zone holds; nil: nothing of any cluster, or not read yet
}

// ZoneStatus is what is known of the zone.
type ZoneStatus struct {
	State  *zone.State              // as read last; nil: never
	Read   time.Time                // when State was known to be the primary's
	Err    error                    // why it is not read now; nil: it is
	Silent map[string]time.Duration // clusters that have a heartbeat, and how long it has not changed
	Dead   []string                 // those that are silent for longer than three of their periods
}

// Publisher is one cluster's writer of one zone. Its methods are safe for concurrent use; Run is called once.
type Publisher struct {
	o      Options
	client *rfc2136.Client
	wake   tick.Chan

	mu    sync.Mutex // protects what follows
	hosts map[string]*host
	zone  ZoneStatus
	moved chan struct{} // closed at each change of a status

	// Run's alone.
	state    *zone.State
	watch    zone.Watch
	beat     beat
	latest   string // the name of the claim that was written last
	limit    limit
	ailing   ailing
	next     struct{ poll, whole time.Time }
	seen     size          // of the last whole zone and of all changes that were read since
	cost     time.Duration // of the last change, where the server sent the whole zone for it; 0: it sends changes
	busy     int           // SERVFAILs in a row
	failures int           // reads and sends without an answer, in a row
	sent     time.Time
	removal  time.Time // no dead cluster is removed before
	excused  time.Time // until then records that are gone were taken by those who thought this cluster dead
}

// host is one host's part of the loop. The mutex protects want, set and status.
type host struct {
	want   zone.Publication // says nothing: the cluster leaves
	set    int              // grows with each Set and Remove
	status Status

	memory  zone.Memory
	seen    int       // set as planned last
	next    time.Time // nothing is sent before
	repairs int       // how often what was programmed was gone, lately
	stable  time.Time // since when it is programmed
	drops   int       // messages in a row that the server refused, or of which it left something out
	taken   int       // messages in a row that were taken whole, and after which there is more to do
}

// New makes a publisher. It does nothing before Run.
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
		if o.Heartbeat > 0 { // who looks more rarely than a heartbeat changes cannot tell that one does not
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
	return &Publisher{o: o, beat: beat{fence: start}, wake: tick.New(), hosts: map[string]*host{}, moved: make(chan struct{}),
		client: &rfc2136.Client{Server: o.Server, Zone: o.Zone, Key: o.Key, Timeout: o.Timeout, Dial: o.Dial, Most: o.Records}}, nil
}

// Set makes the cluster say p of its host. It returns what is wrong with p, and then nothing is changed. It may be called before Run and
// at any time; a p that is not new changes nothing.
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

// Remove makes the cluster leave a host. Status tells when nothing of it is left.
func (p *Publisher) Remove(name string) {
	p.want(zone.Publication{Host: zone.Publication{Host: name}.Normal().Host})
}

// Forget lets a host be: what the zone has of it stays, and is the cluster's no longer by this publisher.
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
	h.status = Status{Host: pub.Host, Generation: h.status.Generation, Writes: h.status.Writes, Messages: h.status.Messages, Held: h.status.Held}
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

// Status returns what is known of a host; false for one that was never set or removed.
func (p *Publisher) Status(name string) (Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[zone.Publication{Host: name}.Normal().Host]
	if h == nil {
		return Status{}, false
	}
	return h.status, true
}

// Zone returns what is known of the zone.
func (p *Publisher) Zone() ZoneStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.zone
}

// Settle waits until each host is programmed, left, or in a conflict, and returns the hosts in a conflict, sorted. Run must be running.
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

// about is d ± 20 %: clusters that started together do not ask together for good.
func about(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // jitter needs no secrecy
}
