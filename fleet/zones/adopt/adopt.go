// Package adopt takes over hosts of a DNS zone from another controller (external-dns, Kuadrant), and can undo that. The other controller
// marks its records by TXT records, its registry. Taking a host deletes the host's registry records, so that the other controller no longer
// treats the host as its own; the host's addresses stay as they are.
//
// It guarantees that no message overwrites a change that another program made: the RRsets of a host, as read from the zone, are the
// prerequisites of each message. An address is never deleted, except to restore the TTL that it had.
//
// The package is pure: it has no clock and no network. All state is in the export (a file) and in the zone, so that an adoption continues
// where it was interrupted. If another program changes a host, the change is reported and stays.
package adopt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// Step is how far an adoption is.
type Step string

// The steps, in their order. Undone can follow each of them.
const (
	Exported  Step = "exported"  // next, the user excludes the hosts in the other controller
	Resting   Step = "resting"   // waiting; the other controller's records have not changed since Export.Since
	Taking    Step = "taking"    // the first Export.Taken hosts are taken, or were found changed by another program
	Verifying Step = "verifying" // since Export.Since no host is left to take; watching whether the other controller changes the hosts
	Verified  Step = "verified"  // the other controller did not change the hosts during Verifying
	Undone    Step = "undone"    // the adoption is undone, or is being undone
)

func steps() []Step { return []Step{Exported, Resting, Taking, Verifying, Verified, Undone} }

// Intervals is a time in intervals of the other controller. Its records must stay unchanged for that long before hosts are taken, and
// the hosts are watched for that long afterwards. One interval is too short: a run that began before the user excluded the hosts may
// still write during it.
const Intervals = 2

// Export is an adoption: the hosts as they were before, and how far the adoption is.
type Export struct {
	Registry
	Zone  string    `json:"zone"`
	Step  Step      `json:"step"`
	Since time.Time `json:"since"`
	Taken int       `json:"taken"` // the number of hosts, from the first one, that were taken or found changed by another program
	Hosts []Host    `json:"hosts"` // sorted by name
	Left  []Left    `json:"left"`  // records that stay with the other controller
}

// New exports those hosts of a zone that a registry marks and no cluster publishes. It returns an error if there is none.
func New(r Registry, z *zone.State, now time.Time) (*Export, error) {
	hosts, left, others, err := r.Read(z)
	if err != nil {
		return nil, err
	}
	marked := len(hosts)
	hosts = slices.DeleteFunc(hosts, func(h Host) bool { // a published host has clusters' addresses too: its Manifest would publish them
		by := publisher(z, h.Name)
		if by != "" {
			left = append(left, Left{h.Records[0], "published by " + by + ": delete its DNSRecord first"})
		}
		return by != ""
	})
	if marked > 0 && len(hosts) == 0 {
		last := left[len(left)-1]
		return nil, fmt.Errorf("%s: neardns already publishes all %d hosts of %s %q; %s: %s",
			z.Origin, marked, r.From, r.Owner, last.Record, last.Reason)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%s: a registry of %s %q marks no host to adopt; other owners in it: %q", z.Origin, r.From, r.Owner, others)
	}
	return &Export{Registry: r, Zone: z.Origin, Step: Exported, Since: now.UTC().Truncate(time.Second), Hosts: hosts, Left: left}, nil
}

// Encode returns the text of an export.
func (e *Export) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(e, "", " ")
	return append(data, '\n'), err
}

// Decode parses the text of an export. It refuses unknown fields, an invalid step, number of taken hosts or registry, and hosts with a
// record that cannot be parsed or without a registry record.
func Decode(data []byte) (*Export, error) {
	e := &Export{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(e); err != nil {
		return nil, err
	}
	if !slices.Contains(steps(), e.Step) || e.Taken < 0 || e.Taken > len(e.Hosts) {
		return nil, fmt.Errorf("step %q with %d of %d hosts taken: not written by zones adopt", e.Step, e.Taken, len(e.Hosts))
	}
	for _, h := range e.Hosts {
		if records := parse(slices.Concat(h.Records, h.Registry)); len(records) != len(h.Records)+len(h.Registry) || len(h.Registry) == 0 {
			return nil, fmt.Errorf("host %s: a record cannot be parsed, or there is no registry record", h.Name)
		}
	}
	return e, e.Registry.Validate()
}

// Update is one DNS UPDATE (RFC 2136), for one host. If a prerequisite does not hold, it changes nothing.
type Update struct {
	Host             int // index in Export.Hosts
	Prereqs, Changes []dns.RR
}

// Action is what is to be done next. The caller first saves the export.
type Action struct {
	Updates []Update      // to be sent in order; for those of Next, the caller also calls Sent
	Wait    time.Duration // time after which to read the zone again
	// a line for each host that another program changed, that a cluster publishes (from Undo), or that has its registry records in the steps
	// Verifying and Verified; in the step Resting, a line for each changed record
	Foreign []string
	Changed map[string]bool // the names of the hosts in Foreign; nil if there is none, in the step Resting, and from Undo
	Done    bool            // nothing is left to do
}

func (a *Action) foreign(host, what string) {
	if a.Changed == nil {
		a.Changed = map[string]bool{}
	}
	a.Foreign, a.Changed[host] = append(a.Foreign, host+what), true
}

// ErrWrites is the error of Next in the step Resting if the hosts' records differ from the export. The export then has the new records.
var ErrWrites = errors.New("the other controller still writes: exclude the hosts there, and run this again")

// ErrForeign is the error of Next and Undo, together with Action.Done, if Action.Foreign has a host.
var ErrForeign = errors.New("another program changed hosts, which were left as they are")

// ErrUndone is the error of Next after Undo.
var ErrUndone = errors.New("this adoption is undone, or was begun to be: complete that with --undo, or name another file with --export")

// Next advances the adoption by what the zone has now, and returns what to do. interval is the time between two runs of the other
// controller.
func (e *Export) Next(z *zone.State, now time.Time, interval time.Duration) (a Action, err error) {
	now = now.UTC()
	if e.Step == Exported {
		e.Step, e.Since = Resting, now
	}
	if now.Before(e.Since) { // the clock was set back
		e.Since = now
	}
	rest := e.Since.Add(Intervals * interval).Sub(now)
	a.Wait = max(min(rest, interval/4), 0)
	if e.Step == Resting {
		if a.Foreign, err = e.refresh(z, now); err != nil || rest > 0 {
			return a, err
		}
		e.Step, e.Taken = Taking, 0
	}
	standing := e.look(z, &a)
	switch e.Step {
	case Taking:
		for _, i := range standing {
			if i >= e.Taken {
				a.Updates = append(a.Updates, e.take(z, i))
			}
		}
		if len(a.Updates) > 0 {
			a.Wait = 0
			return a, nil
		}
		e.Step, e.Since, e.Taken = Verifying, now, len(e.Hosts)
		rest, a.Wait = Intervals*interval, interval/4
	case Undone:
		return a, ErrUndone
	}
	for _, i := range standing {
		a.foreign(e.Hosts[i].Name, " still has its registry records, or has them again")
	}
	if a.Done = e.Step == Verified || e.Step == Verifying && rest <= 0; !a.Done {
		return a, nil
	}
	if len(a.Foreign) > 0 {
		return a, ErrForeign
	}
	e.Step = Verified
	return a, nil
}

// Sent records that the server made an update of Next, or refused it because of a prerequisite.
func (e *Export) Sent(u Update) { e.Taken = u.Host + 1 }

// refresh compares the export with the zone before anything is taken. If the hosts' records differ, it exports the hosts again, and returns
// the differences and ErrWrites.
func (e *Export) refresh(z *zone.State, now time.Time) ([]string, error) {
	fresh, err := New(e.Registry, z, now)
	if err != nil {
		return nil, err
	}
	lines := func(hosts []Host) (all []string) {
		for _, h := range hosts {
			all = append(append(all, h.Records...), h.Registry...)
		}
		return all
	}
	diff := differences(lines(e.Hosts), lines(fresh.Hosts))
	e.Left = fresh.Left
	if len(diff) == 0 {
		return nil, nil
	}
	e.Hosts, e.Since = fresh.Hosts, now
	return diff, ErrWrites
}

// differences returns the lines of old that are not in now, each after "- ", and then the lines of now that are not in old, after "+ ".
func differences(old, now []string) (diff []string) {
	without := func(sign string, from, what []string) {
		have := map[string]bool{}
		for _, l := range what {
			have[l] = true
		}
		for _, l := range from {
			if !have[l] {
				diff = append(diff, sign+" "+l)
			}
		}
	}
	without("-", old, now)
	without("+", now, old)
	return diff
}

// state is what the zone has of a host, compared with the export.
type state int

const (
	standing state = iota // addresses and registry records are as exported
	taken                 // it has none of its registry records, and its addresses are as exported or a cluster publishes it
	foreign               // anything else: another program changed it
)

// current returns, by name, the hosts that the registry in the zone marks now.
func (e *Export) current(z *zone.State) map[string]Host {
	all := map[string]Host{}
	hosts, _, _, _ := e.Read(z) //nolint:dogsled // only the hosts matter here, not the error about an encrypted registry
	for _, h := range hosts {
		all[h.Name] = h
	}
	return all
}

// compare returns the state of a host, and the records in which the zone differs from the export, without the registry records if all are
// gone. current is the result of Export.current.
func (h *Host) compare(z *zone.State, current map[string]Host) (state, []string) {
	now := Host{Records: h.in(z)}
	if c, ok := current[h.Name]; ok {
		now.Registry = c.Registry
	}
	for _, line := range h.Registry { // also find the registry records of an address that is gone
		there := texts(z.RRset(parse([]string{line})[0].Header().Name, dns.TypeTXT))
		if slices.Contains(there, line) && !slices.Contains(now.Registry, line) {
			now.Registry = append(now.Registry, line)
		}
	}
	records, registry := differences(h.Records, now.Records), differences(h.Registry, now.Registry)
	switch {
	case len(records) == 0 && len(registry) == 0:
		return standing, nil
	case len(now.Registry) == 0 && (len(records) == 0 || publisher(z, h.Name) != ""):
		return taken, records
	case len(now.Registry) == 0:
		return foreign, records // without the registry records, whose absence is intended
	}
	return foreign, slices.Concat(records, registry)
}

// in returns, sorted, the host's address records in a zone, of the types that the export has.
func (h *Host) in(z *zone.State) (all []string) {
	for _, rrtype := range h.types() {
		all = append(all, texts(z.RRset(h.Name, rrtype))...)
	}
	slices.Sort(all)
	return all
}

func (h *Host) types() (types []uint16) {
	for _, rr := range parse(h.Records) {
		if t := rr.Header().Rrtype; !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types
}

// look returns the indexes of the hosts that are as exported, and adds the hosts that another program changed to a.Foreign.
func (e *Export) look(z *zone.State, a *Action) (unchanged []int) {
	current := e.current(z)
	for i := range e.Hosts {
		switch s, diff := e.Hosts[i].compare(z, current); s {
		case standing:
			unchanged = append(unchanged, i)
		case foreign:
			a.foreign(e.Hosts[i].Name, " was changed: "+strings.Join(diff, "; "))
		}
	}
	return unchanged
}

// take returns the update that deletes the registry records of the host with index i, which must be as exported.
func (e *Export) take(z *zone.State, i int) Update {
	u := e.update(z, i)
	for _, rr := range parse(e.Hosts[i].Registry) {
		u.Changes = append(u.Changes, zone.Deletion(rr))
	}
	return u
}

// update returns an update without changes for the host with index i. Its prerequisites are all RRsets of the host and of its registry that
// the export names, as they are in z.
func (e *Export) update(z *zone.State, i int) Update {
	h, u := &e.Hosts[i], Update{Host: i}
	for _, rrtype := range h.types() {
		u.Prereqs = append(u.Prereqs, z.AsRead(h.Name, rrtype)...)
	}
	var done []string
	for _, rr := range parse(h.Registry) {
		if name := rr.Header().Name; !slices.Contains(done, name) {
			done = append(done, name)
			u.Prereqs = append(u.Prereqs, z.AsRead(name, dns.TypeTXT)...)
		}
	}
	return u
}

// Undo returns the updates that restore the hosts as they were exported: registry records, TTLs and, if no address is left, the addresses.
// Hosts that a cluster publishes, or that another program changed, stay as they are. The caller sends the updates and calls Undo with the
// zone as read after them, until Action.Done is set.
func (e *Export) Undo(z *zone.State) (a Action, err error) {
	e.Step = Undone
	current := e.current(z)
	for i := range e.Hosts {
		h := &e.Hosts[i]
		s, diff := h.compare(z, current)
		switch by := publisher(z, h.Name); {
		case s == standing:
		case by != "":
			a.Foreign = append(a.Foreign, fmt.Sprintf("%s is published by %s: delete its DNSRecord, then undo again", h.Name, by))
		case s == taken || current[h.Name].Name == "" && h.restorable(z):
			a.Updates = append(a.Updates, e.restore(z, i))
		default:
			a.Foreign = append(a.Foreign, h.Name+" was changed: "+strings.Join(diff, "; "))
		}
	}
	if a.Done = len(a.Updates) == 0; a.Done && len(a.Foreign) > 0 {
		return a, ErrForeign
	}
	return a, nil
}

// unlike are the types next to which deleted addresses are not restored: a host with such a record belongs to another program by now. Next
// to a CNAME, servers drop an added address without an error.
var unlike = []uint16{dns.TypeCNAME, dns.TypeA, dns.TypeAAAA}

// restorable reports whether a host has none of its registry records, and either no address and no CNAME, or exactly the exported addresses
// of the exported types, whatever their TTLs.
func (h *Host) restorable(z *zone.State) bool {
	for _, rr := range parse(h.Registry) {
		if slices.ContainsFunc(z.RRset(rr.Header().Name, dns.TypeTXT), func(x dns.RR) bool { return dns.IsDuplicate(rr, x) }) {
			return false
		}
	}
	old := parse(h.Records)
	for _, rr := range parse(h.in(z)) {
		at := slices.IndexFunc(old, func(x dns.RR) bool { return dns.IsDuplicate(rr, x) })
		if at < 0 {
			return false
		}
		old = slices.Delete(old, at, at+1)
	}
	other := func(rrtype uint16) bool { return len(z.RRset(h.Name, rrtype)) > 0 }
	return len(old) == 0 || len(old) == len(h.Records) && !slices.ContainsFunc(unlike, other)
}

func (e *Export) restore(z *zone.State, i int) Update {
	h, u := &e.Hosts[i], e.update(z, i)
	for _, rrtype := range unlike {
		if !slices.Contains(h.types(), rrtype) {
			u.Prereqs = append(u.Prereqs, z.AsRead(h.Name, rrtype)...)
		}
	}
	now := h.in(z)
	for _, rr := range parse(h.Records) {
		if slices.Contains(now, text(rr)) {
			continue
		}
		if len(now) > 0 { // delete first: Knot keeps the old TTL if an existing RR is added with another one
			u.Changes = append(u.Changes, zone.Deletion(rr))
		}
		u.Changes = append(u.Changes, rr)
	}
	u.Changes = append(u.Changes, parse(h.Registry)...)
	return u
}

// Exclusion returns, for the user, what to do so that the other controller neither changes nor deletes the hosts.
func (e *Export) Exclusion() string {
	if e.From == Kuadrant {
		return "Now stop Kuadrant's dns-operator in each cluster that publishes the hosts: kubectl -n kuadrant-system scale deployment " +
			"dns-operator-controller-manager --replicas=0\nDo not delete its DNSRecords or DNSPolicies: that would delete the hosts."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Now add this to external-dns' flags, and keep the others:\n")
	for _, h := range e.Hosts {
		fmt.Fprintf(&b, "  --exclude-domains=%s\n", strings.TrimSuffix(h.Name, "."))
	}
	for _, l := range e.Left {
		name, _, _ := strings.Cut(l.Record, " ")
		if slices.ContainsFunc(e.Hosts, func(h Host) bool { return strings.HasSuffix(name, "."+h.Name) }) {
			fmt.Fprintf(&b, "Attention: this also stops external-dns for %s, which is below a host\n", strings.TrimSuffix(name, "."))
		}
	}
	b.WriteString("Do not delete or annotate the sources (Services, Ingresses): with --policy=sync, external-dns would delete the hosts.")
	return b.String()
}

// Describe returns what the present step means, for the user.
func (e *Export) Describe(interval time.Duration) string {
	until := e.Since.Add(Intervals * interval).Format(time.RFC3339)
	switch e.Step {
	case Resting:
		return fmt.Sprintf("watching until %s whether %s changes the hosts", until, e.From)
	case Taking:
		return fmt.Sprintf("deleting the registry records of %d hosts", len(e.Hosts))
	case Verifying:
		return fmt.Sprintf("no host is left to take; watching until %s whether %s changes them", until, e.From)
	case Verified:
		return "the hosts are adopted; apply the DNSRecords that standard output has"
	}
	return "restoring the hosts as they were exported"
}
