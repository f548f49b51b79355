package zonefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// View is one zone of a file, with a client of the zone's primary.
type View struct {
	File   *File
	Zone   *v1alpha1.DNSZone
	client *rfc2136.Client
}

// Open reads a file and selects the DNSZone whose object name or zone is name; "" stands for the file's only DNSZone.
func Open(path, name string) (*View, error) {
	f, err := Read(path)
	if err != nil {
		return nil, err
	}
	z, err := f.zone(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key := f.Keys[z.Name]
	client := &rfc2136.Client{Server: server(z.Spec.Primary), Zone: zones.Canonical(z.Spec.Zone),
		Answer: 6 * rfc2136.DefaultTimeout, // a busy primary takes its time; as zonewriter's without heartbeats
		Key:    func() (rfc2136.Key, error) { return key, nil }}
	return &View{f, z, client}, nil
}

// read transfers the whole zone.
func (v *View) read(ctx context.Context) (*zone.State, error) {
	t, err := v.client.AXFR(ctx)
	if err != nil {
		return nil, err
	}
	return zone.Parse(v.client.Zone, t.Full)
}

// Check prints which of the file's DNSRecords are accepted, and then reads the zone from its primary. It writes nothing to the zone.
func (v *View) Check(ctx context.Context, out io.Writer) error {
	var faults error
	keys := slices.SortedFunc(maps.Keys(v.File.Plan.Records), func(a, b zones.Key) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		r := v.File.Plan.Records[key]
		_, _ = fmt.Fprintf(out, "DNSRecord %s: %s: %s\n", key, r.Reason, r.Message)
		if !r.Good() {
			faults = errors.New("not all records are accepted")
		}
	}
	if z := v.File.Plan.Zones[v.Zone.Name]; !z.Good() {
		return fmt.Errorf("DNSZone %s: %s: %s", v.Zone.Name, z.Reason, z.Message)
	}
	s, err := v.read(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "DNSZone %s: %s has serial %d at %s, with %d hosts of %d clusters",
		v.Zone.Name, v.Zone.Spec.Zone, s.Serial, v.client.Server, len(s.Hosts), len(clusters(s)))
	if s.Ignored > 0 {
		_, _ = fmt.Fprintf(out, "; %d records below _neardns are not neardns's", s.Ignored)
	}
	_, _ = fmt.Fprintln(out)
	return faults
}

// Get prints what the zone has for the named hosts or, without names, for all hosts of which it has records of clusters.
func (v *View) Get(ctx context.Context, out io.Writer, hosts ...string) error {
	s, err := v.read(ctx)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		hosts = slices.Sorted(maps.Keys(s.Hosts))
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "HOST\tSTRATEGY\tTTL\tADDRESSES\tCLUSTER\tGEO\tWEIGHT\tPUBLISHES")
	for _, name := range hosts {
		h := s.Hosts[zones.Canonical(name)]
		if h == nil {
			return fmt.Errorf("%s has no host %s of any cluster", v.Zone.Spec.Zone, name)
		}
		row := []string{strings.TrimSuffix(h.Name, "."), string(h.Strategy), fmt.Sprint(h.TTL), texts(h.Addresses)}
		for _, cluster := range slices.Sorted(maps.Keys(h.Claims)) {
			c := h.Claims[cluster]
			said := texts(c.Addresses)
			if c.Target != "" {
				said = c.Target
			}
			_, _ = fmt.Fprintln(w, strings.Join(append(row, cluster, c.Geo, fmt.Sprint(c.Weight), said), "\t"))
			row = make([]string, len(row)) // print the columns of the host only in its first row
		}
		if len(h.Claims) == 0 {
			_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
		}
	}
	return w.Flush()
}

func texts(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}

// clusters returns, sorted, the IDs of all clusters that have a heartbeat, or a claim or an owner record of a host, in the zone.
func clusters(s *zone.State) []string {
	all := map[string]bool{}
	for c := range s.Beats {
		all[c] = true
	}
	for _, h := range s.Hosts {
		for c := range h.Claims {
			all[c] = true
		}
		for _, c := range h.Owners {
			all[c] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Owners prints each cluster in the zone, with its heartbeat and the number of its hosts. With a watch above 0, it reads the zone twice,
// that time apart: a cluster whose heartbeat has changed is alive.
func (v *View) Owners(ctx context.Context, out io.Writer, watch time.Duration) error {
	first, err := v.read(ctx)
	if err != nil {
		return err
	}
	s := first
	if watch > 0 {
		if err := wait(ctx, watch); err != nil {
			return err
		}
		if s, err = v.read(ctx); err != nil {
			return err
		}
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CLUSTER\tINSTANCE\tHEARTBEAT\tEVERY\tHOSTS\tSTATE")
	enough := time.Duration(0)
	for _, c := range clusters(s) {
		beat, every, instance, state := "none", "", "", "no heartbeat"
		if b, ok := s.Beats[c]; ok {
			beat, every, instance = fmt.Sprint(b.Counter), b.Period.String(), b.Instance
			switch needed := zone.ReportAfter * b.Period; {
			case b != first.Beats[c]:
				state = "alive"
			case watch >= needed:
				state = "silent"
			default:
				state, enough = "unknown", max(enough, needed)
			}
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", c, instance, beat, every, len(s.Of(c)), state)
	}
	if err := w.Flush(); err != nil || enough == 0 {
		return err
	}
	_, err = fmt.Fprintf(out, "A cluster is silent if its heartbeat does not change for three of its periods: --watch %s shows it.\n", enough)
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Plan prints, as nsupdate commands, the first update that the cluster would send now for each host of the file, or why there is none. It
// sends none.
func (v *View) Plan(ctx context.Context, out io.Writer, id zone.Identity) error {
	s, err := v.read(ctx)
	if err != nil {
		return err
	}
	hosts := v.File.Plan.Zones[v.Zone.Name].Hosts
	quiet := true
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		step := s.Plan(zone.Writer{Identity: id}, zone.Memory{}, hosts[name])
		switch {
		case step.Conflict != nil:
			_, _ = fmt.Fprintf(out, "; %s: nothing is written: %s: %s\n", name, step.Conflict.Reason, step.Conflict.Message)
		case step.Message.Empty():
			_, _ = fmt.Fprintf(out, "; %s: the zone already has it\n", name)
			continue
		default:
			_, _ = fmt.Fprintf(out, "; %s\n%s", name, nsupdate(step.Message))
		}
		quiet = false
	}
	if quiet {
		_, _ = fmt.Fprintln(out, "; nothing is to be done")
	}
	return nil
}

// nsupdate formats an update as commands for BIND's program nsupdate.
func nsupdate(m zone.Message) string {
	var b strings.Builder
	for _, rr := range m.Prereqs {
		h := rr.Header()
		kind := dns.TypeToString[h.Rrtype]
		switch h.Class {
		case dns.ClassNONE:
			fmt.Fprintf(&b, "prereq nxrrset %s %s\n", h.Name, kind)
		case dns.ClassANY:
			fmt.Fprintf(&b, "prereq yxrrset %s %s\n", h.Name, kind)
		default:
			fmt.Fprintf(&b, "prereq yxrrset %s %s %s\n", h.Name, kind, data(rr))
		}
	}
	for _, rr := range m.Changes {
		h := rr.Header()
		kind := dns.TypeToString[h.Rrtype]
		switch h.Class {
		case dns.ClassNONE:
			fmt.Fprintf(&b, "update delete %s %s %s\n", h.Name, kind, data(rr))
		case dns.ClassANY:
			fmt.Fprintf(&b, "update delete %s %s\n", h.Name, kind)
		default:
			fmt.Fprintf(&b, "update add %s %d %s %s\n", h.Name, h.Ttl, kind, data(rr))
		}
	}
	b.WriteString("send\n")
	return b.String()
}

func data(rr dns.RR) string { return strings.TrimPrefix(rr.String(), rr.Header().String()) }

// ErrAlive is the error of Remove if the cluster's heartbeat has changed, appeared or disappeared.
var ErrAlive = errors.New("its heartbeat changes: it is alive")

// Remove deletes everything that a dead cluster has in the zone. It first waits for the time watch: if the cluster's heartbeat changes
// meanwhile, Remove returns ErrAlive. With watch 0, it waits for zone.ReportAfter heartbeat periods, but at least a minute. Each update has
// the unchanged heartbeat as a prerequisite. If really is false, Remove does not wait, and only prints the updates of hosts.
func (v *View) Remove(ctx context.Context, out io.Writer, cluster string, really bool, watch time.Duration) error {
	first, err := v.read(ctx)
	if err != nil {
		return err
	}
	beat, beats := first.Beats[cluster]
	if len(first.Of(cluster)) == 0 && !beats {
		return fmt.Errorf("%s has nothing of cluster %s; `zones owners` lists the clusters", v.Zone.Spec.Zone, cluster)
	}
	if !really {
		for _, host := range first.Of(cluster) {
			step := first.PlanRemoval(host, cluster)
			_, _ = fmt.Fprintf(out, "; %s\n%s", host, nsupdate(v.guarded(first, cluster, step.Message)))
		}
		_, _ = fmt.Fprintln(out, "; nothing was sent: add --yes to remove it")
		return nil
	}
	watch = cmp.Or(watch, max(time.Minute, zone.ReportAfter*beat.Period)) // a minute if it has no heartbeat
	_, _ = fmt.Fprintf(out, "watching the heartbeat of %s for %s\n", cluster, watch)
	if err := wait(ctx, watch); err != nil {
		return err
	}
	// A host needs more than one update if other clusters change it at the same time, or if something of the cluster is left after the first.
	for tries := 0; ; {
		s, err := v.read(ctx)
		if err != nil {
			return err
		}
		if now, ok := s.Beats[cluster]; ok != beats || now != beat {
			return fmt.Errorf("remove %s: %w", cluster, ErrAlive)
		}
		hosts := s.Of(cluster)
		if len(hosts) == 0 {
			return v.removeBeat(ctx, out, s, cluster)
		}
		for _, host := range hosts {
			step := s.PlanRemoval(host, cluster)
			m := v.guarded(s, cluster, step.Message)
			err := v.client.Update(ctx, m.Prereqs, m.Changes)
			if err == nil {
				_, _ = fmt.Fprintf(out, "%s: removed what %s published\n", host, cluster)
			} else if kind := rfc2136.KindOf(err); kind != rfc2136.Prerequisite && kind != rfc2136.ServerFailed && !rfc2136.Unsure(err) {
				return fmt.Errorf("remove %s: %w", cluster, err)
			}
		}
		if tries++; tries > len(hosts)+20 {
			return fmt.Errorf("remove %s: others change the same hosts all the time, or the key may not do this; %d hosts are left",
				cluster, len(hosts))
		}
	}
}

// guarded adds to the update m the prerequisite that the cluster's heartbeat has not changed since s was read.
func (v *View) guarded(s *zone.State, cluster string, m zone.Message) zone.Message {
	return zone.Message{Prereqs: append(s.BeatAsRead(cluster), m.Prereqs...), Changes: m.Changes}
}

func (v *View) removeBeat(ctx context.Context, out io.Writer, s *zone.State, cluster string) error {
	if changes := s.PlanNoBeat(cluster); len(changes) > 0 {
		if err := v.client.Update(ctx, s.BeatAsRead(cluster), changes); rfc2136.KindOf(err) == rfc2136.Prerequisite {
			return fmt.Errorf("remove %s: %w", cluster, ErrAlive)
		} else if err != nil {
			return fmt.Errorf("remove %s: %w", cluster, err)
		}
	}
	_, _ = fmt.Fprintf(out, "%s: nothing of %s is left\n", v.Zone.Spec.Zone, cluster)
	return nil
}
