package zonefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
)

// Publishing has the options of `zones publish`.
type Publishing struct {
	File     string
	Identity zone.Identity
	Prune    bool             // remove this cluster's hosts from the zone if the file has no record for them and every object is accepted
	Once     bool             // return when each host is published or removed, or has a conflict that prevents it
	JSON     bool             // print JSON lines, not text
	Poll     time.Duration    // interval of queries for the zone's serial, as zonewriter.Options.Poll
	Reread   <-chan os.Signal // a signal that the file has changed
	Out      io.Writer        // gets a line for each change of the state of a host, zone or refused object
	Log      *slog.Logger
}

// lookEvery is the interval at which Publish reads the status of each zone. Publishers announce changes of hosts only, not of the zone.
const lookEvery = 200 * time.Millisecond

// ErrConflict is the error of Publish with Once if a record could not be published, or ctx ended before all were.
var ErrConflict = errors.New("not all is as the file says")

// Publish publishes the records of a file until ctx ends or, with Once, until each is published or cannot be. Published records stay in
// the zone when it returns.
func Publish(ctx context.Context, o Publishing) error {
	f, err := Read(o.File)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &publishing{Publishing: o, ctx: ctx, changed: make(chan struct{}, 1), last: map[string]string{}}
	defer p.wait()
	defer cancel()
	if err := p.apply(f); err != nil {
		return err
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		done, good := p.report()
		if o.Once && done {
			if !good {
				return ErrConflict
			}
			return nil
		}
		select {
		case <-ctx.Done():
			if o.Once {
				return fmt.Errorf("%w: %w", ErrConflict, context.Cause(ctx))
			}
			return nil
		case <-p.changed:
		case <-look.C:
		case <-o.Reread:
			f, err := Read(o.File)
			if err == nil {
				err = p.apply(f)
			}
			if err != nil {
				o.Log.Error("cannot read or apply the file again; what was not applied keeps its earlier content", "error", err)
			}
		}
	}
}

// publishing is one run of Publish.
type publishing struct {
	Publishing
	ctx     context.Context //nolint:containedctx // context of the whole run; publishers that a reread of the file starts need it too
	zones   map[string]*running
	changed chan struct{}
	last    map[string]string // the last line that was printed, by host, DNSZone, or kind and name of another object
	bad     map[string]Line   // by "DNSRecord NAME" or "DNSPolicy NAME", for those that are not accepted
	busy    sync.WaitGroup
}

// running is the publisher of one DNSZone.
type running struct {
	spec      v1alpha1.DNSZoneSpec
	publisher *zonewriter.Publisher
	cancel    context.CancelFunc
	hosts     map[string]bool // by host: true if it was passed to Set last, false if to Remove
	pruned    bool            // prune has run since the file was last applied

	mu  sync.Mutex // guards key
	key rfc2136.Key
}

func (z *running) current() (rfc2136.Key, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.key, nil
}

func (p *publishing) wait() {
	for _, z := range p.zones {
		z.cancel()
	}
	p.busy.Wait()
}

// tell wakes the loop of Publish. It never blocks.
func (p *publishing) tell(string) {
	select {
	case p.changed <- struct{}{}:
	default: // the loop is already woken
	}
}

// apply passes the file's records to the publishers. If a DNSZone's zone, primary, heartbeat, removal or message rate has changed, apply
// replaces its publisher by a new one. It returns an error, and stops no publisher, if a DNSZone is bad.
func (p *publishing) apply(f *File) error {
	next := map[string]*running{}
	for i := range f.Zones {
		z := &f.Zones[i]
		if decided := f.Plan.Zones[z.Name]; !decided.Good() {
			return fmt.Errorf("DNSZone %s: %s: %s", z.Name, decided.Reason, decided.Message)
		}
		var err error
		if next[z.Name], err = p.open(z); err != nil {
			return err
		}
	}
	p.bad = f.notAccepted()
	for key, policy := range f.Policies {
		for _, u := range policy.Unpublished {
			p.Log.Warn("listener not published", "dnspolicy", key, "listener", u.Listener, "host", u.Host, "reason", u.Reason, "message", u.Message)
		}
	}
	before := map[string]map[string]bool{} // by zone: the field hosts of a publisher that is stopped here
	for name, z := range p.zones {
		n := next[name]
		if n == z {
			continue
		}
		z.cancel()
		before[zones.Canonical(z.spec.Zone)] = z.hosts
		if n == nil || n.spec.Zone != z.spec.Zone {
			p.Log.Warn("DNSZone left the file or has a new zone; records stay unless another has the old zone", "dnszone", name, "zone", z.spec.Zone)
		}
	}
	p.zones = next
	for name, z := range next {
		p.start(z, f.Keys[name])
	}
	for name, z := range next {
		decided := f.Plan.Zones[name]
		// Pass on to a new publisher which hosts its predecessor had set (true) or removed (false), so that it removes those not wanted now.
		for host, set := range before[zones.Canonical(z.spec.Zone)] {
			if _, there := z.hosts[host]; !there {
				z.hosts[host] = set
				if !set {
					z.publisher.Remove(host)
				}
			}
		}
		for host := range z.hosts {
			if _, there := decided.Hosts[host]; !there && z.hosts[host] && !p.faulty() { // a fault in the file removes nothing
				z.publisher.Remove(host)
				z.hosts[host] = false
			}
		}
		for _, host := range slices.Sorted(maps.Keys(decided.Hosts)) {
			if err := z.publisher.Set(decided.Hosts[host]); err != nil {
				return err
			}
			z.hosts[host] = true
		}
		z.pruned = false
	}
	return nil
}

// sameWay reports whether a publisher that was started for a also fits b. spec.publishers decides only which records are accepted, so a
// change of it needs no new publisher.
func sameWay(a, b v1alpha1.DNSZoneSpec) bool {
	return a.Zone == b.Zone && a.Primary == b.Primary && a.HeartbeatSeconds == b.HeartbeatSeconds && a.Removal == b.Removal &&
		a.MessagesPerMinute == b.MessagesPerMinute
}

// open returns the publisher of a DNSZone: the one that runs, or a new one that start must start.
func (p *publishing) open(spec *v1alpha1.DNSZone) (*running, error) {
	if z := p.zones[spec.Name]; z != nil && sameWay(spec.Spec, z.spec) {
		return z, nil
	}
	z := &running{spec: spec.Spec, hosts: map[string]bool{}}
	var err error
	z.publisher, err = zonewriter.New(zonewriter.Options{
		Zone: zones.Canonical(spec.Spec.Zone), Server: server(spec.Spec.Primary), Key: z.current, Identity: p.Identity,
		Heartbeat: time.Duration(spec.Spec.HeartbeatSeconds) * time.Second, Remove: spec.Spec.Removal == v1alpha1.RemovalRemove,
		Rate: float64(spec.Spec.MessagesPerMinute) / 60, Poll: p.Poll, Changed: p.tell, Log: p.Log,
	})
	return z, err
}

// start sets a publisher's key, and starts the publisher unless it runs.
func (p *publishing) start(z *running, key rfc2136.Key) {
	z.mu.Lock()
	z.key = key
	z.mu.Unlock()
	if z.cancel == nil {
		var ctx context.Context
		ctx, z.cancel = context.WithCancel(p.ctx)
		p.busy.Go(func() { z.publisher.Run(ctx) })
	}
}

// server returns the primary's address with a port: 53 if it has none.
func server(primary string) string {
	if _, _, err := net.SplitHostPort(primary); err == nil {
		return primary
	}
	return net.JoinHostPort(strings.Trim(primary, "[]"), "53")
}

// notAccepted returns a line for each object that is not accepted, by "DNSRecord NAME" or "DNSPolicy NAME".
func (f *File) notAccepted() map[string]Line {
	bad := map[string]Line{}
	for key, r := range f.Plan.Records {
		if !r.Good() {
			bad["DNSRecord "+key.String()] = Line{Record: key.String(), Reason: r.Reason, Message: r.Message}
		}
	}
	for key, policy := range f.Policies {
		if !policy.Good() {
			bad["DNSPolicy "+key.String()] = Line{Policy: key.String(), Reason: policy.Reason, Message: policy.Message}
		}
	}
	return bad
}

// faulty reports whether an object is not accepted because of a fault, and not because it is being deleted or its host is another's.
func (p *publishing) faulty() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(p.bad)), func(l Line) bool {
		return l.Reason != zones.Deleting && l.Reason != zones.Conflicted
	})
}

// Line is the state of one host or zone, or of a DNSRecord or DNSPolicy that is not accepted, as `zones publish --json` prints it.
type Line struct {
	Host       string   `json:"host,omitempty"`
	Record     string   `json:"record,omitempty"` // set instead of Host: a DNSRecord that is not accepted
	Policy     string   `json:"policy,omitempty"` // set instead of Host: a DNSPolicy that is not accepted
	Zone       string   `json:"zone,omitempty"`   // set instead of Host: a zone; Programmed then means that it can be read now
	Programmed bool     `json:"programmed"`       // the zone has what the file publishes for the host, confirmed by reading it back
	Left       bool     `json:"left,omitempty"`   // the zone has nothing of this cluster for this host, confirmed by reading it back
	Reason     string   `json:"reason,omitempty"`
	Message    string   `json:"message,omitempty"`
	Conflict   string   `json:"conflict,omitempty"` // same as Reason, if the host is not as wanted; empty if Reason is only a note
	Notes      []string `json:"notes,omitempty"`
	Owners     []string `json:"owners,omitempty"`
	Attempt    int      `json:"attempt,omitempty"`
	Since      string   `json:"since,omitempty"`
	Generation uint64   `json:"generation,omitempty"`
	Writes     uint64   `json:"writes"`
}

// report prints a line for each host, zone and refused object whose state has changed. done means that no host is in progress and, with
// Prune and if every object is accepted, that prune has run; good means that each host is published or removed as the file wants, and every
// object is accepted.
func (p *publishing) report() (done, good bool) {
	done, good = true, len(p.bad) == 0
	for _, object := range slices.Sorted(maps.Keys(p.bad)) {
		p.print(object, p.bad[object])
	}
	for _, name := range slices.Sorted(maps.Keys(p.zones)) {
		z := p.zones[name]
		if p.Prune && !z.pruned && !p.faulty() {
			done = p.prune(z) && done
		}
		p.print(" "+name, zoneLine(z))
		for _, host := range slices.Sorted(maps.Keys(z.hosts)) {
			s, ok := z.publisher.Status(host)
			if !ok {
				continue
			}
			well := s.Programmed || s.Left
			done = done && (well || s.Conflict != nil && s.Conflict.Reason != zonewriter.Contended)
			good = good && well
			p.print(host, line(s))
		}
	}
	return done, good
}

// prune has the publisher remove from the zone those hosts of this cluster for which the file has no record. It does nothing and
// returns false if the zone was not read from its server yet.
func (p *publishing) prune(z *running) bool {
	state := z.publisher.Zone().State
	if state == nil {
		return false
	}
	for _, host := range state.Of(p.Identity.Cluster) {
		if _, known := z.hosts[host]; !known {
			z.publisher.Remove(host)
			z.hosts[host] = false
		}
	}
	z.pruned = true
	return true
}

func zoneLine(z *running) Line {
	l, s := Line{Zone: zones.Canonical(z.spec.Zone)}, z.publisher.Zone()
	l.Programmed = s.State != nil && s.Err == nil
	if s.Err != nil {
		l.Reason, l.Message = string(rfc2136.KindOf(s.Err)), s.Err.Error()
	}
	return l
}

func line(s zonewriter.Status) Line {
	l := Line{Host: s.Host, Programmed: s.Programmed, Left: s.Left, Generation: s.Generation, Writes: s.Writes, Attempt: s.Attempt}
	for _, n := range s.Notes {
		l.Notes = append(l.Notes, string(n.Reason))
		l.Reason, l.Message = string(n.Reason), n.Message
	}
	if c := s.Conflict; c != nil {
		l.Reason, l.Conflict, l.Message = string(c.Reason), string(c.Reason), c.Message
		l.Since = s.Since.UTC().Format(time.RFC3339)
	}
	if s.Held != nil {
		l.Owners = s.Held.Owners
	}
	return l
}

// print prints a line, unless it equals the last line that was printed with the same about: a host, zone or object.
func (p *publishing) print(about string, l Line) {
	var text string
	if p.JSON {
		data, err := json.Marshal(l)
		if err != nil {
			p.Log.Error("cannot encode the state of a host or zone as JSON", "error", err) // cannot happen: JSON can encode every field of a Line
			return
		}
		text = string(data)
	} else {
		text = l.String()
	}
	if p.last[about] != text {
		p.last[about] = text
		_, _ = fmt.Fprintln(p.Out, text)
	}
}

// String returns the line as text.
func (l Line) String() string {
	switch {
	case l.Zone != "" && l.Programmed:
		return l.Zone + " is read"
	case l.Zone != "" && l.Message != "":
		return l.Zone + " cannot be read: " + l.Message
	case l.Zone != "":
		return l.Zone + " is not read yet"
	case l.Record != "":
		return fmt.Sprintf("DNSRecord %s is not accepted: %s: %s", l.Record, l.Reason, l.Message)
	case l.Policy != "":
		return fmt.Sprintf("DNSPolicy %s is not accepted: %s: %s", l.Policy, l.Reason, l.Message)
	case l.Left:
		return l.Host + " left: nothing of this cluster is there"
	case l.Programmed && l.Reason != "":
		return fmt.Sprintf("%s programmed, owners %s; %s: %s", l.Host, strings.Join(l.Owners, " "), l.Reason, l.Message)
	case l.Programmed:
		return fmt.Sprintf("%s programmed, owners %s", l.Host, strings.Join(l.Owners, " "))
	case l.Reason != "":
		return fmt.Sprintf("%s waits: %s: %s (attempt %s since %s)", l.Host, l.Reason, l.Message, strconv.Itoa(l.Attempt), l.Since)
	}
	return l.Host + " is on its way"
}
