// Package records publishes this cluster's hosts in shared zones as fleet/controller/zones decides: it reads DNSZones, DNSRecords,
// Secrets, Services and Gateways, instructs the publisher of each zone, and writes finalizers, statuses, Events and metrics.
//
// It guarantees that a DNSRecord has its finalizer before it is published, and keeps it until its records are gone from the zone. On
// failure what was published stays in the zone, and the status has the reason.
package records

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// Finalizer keeps a DNSRecord until its records are gone from its zone, and a DNSZone until it has no such record.
const Finalizer = "neardns.io/zones"

// withdrawAfter is how long an address must fail its health check before this cluster removes it from the zone. Edges react within
// seconds by themselves; the removal is for plain servers, and costs a write.
const withdrawAfter = 3 * time.Minute

// Publisher publishes this cluster's records in one zone. Its methods return at once and are safe for concurrent use.
type Publisher interface {
	// Set publishes everything for a host. Remove deletes everything of this cluster at a host. Forget leaves a host's records as they
	// are.
	Set(p zone.Publication)
	Remove(host string)
	Forget(host string)
	// Host returns the progress of the last Set or Remove; Zone returns the status of the zone.
	Host(host string) zones.Progress
	Zone() ZoneProgress
	// Stop ends the publisher and waits until it has ended. What was published stays.
	Stop()
}

// ZoneProgress is a publisher's status of its zone.
type ZoneProgress struct {
	Read            time.Time // when it was read last; zero: never
	Reason, Message string    // why it cannot be read or written now, or empty
	Clusters        []string  // sorted
	Silent          []string  // the clusters that missed three heartbeats; sorted
}

// Setting configures a publisher. If a field changes, a new publisher is opened.
type Setting struct {
	Zone      string // canonical
	Primary   string // address or name, with the port
	Heartbeat time.Duration
	Remove    bool
	PerMinute int32
}

// Reconciler handles all objects on each event. Its methods are for one goroutine.
type Reconciler struct {
	Client  client.Client
	Direct  client.Reader // for Gateways, a kind that the cluster may lack
	Events  events.EventRecorder
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	// Namespace holds the Secrets of the keys.
	Namespace string
	ClusterID string
	// Open starts a publisher. The publisher calls key for each message, and works before it removes an address of a dead cluster.
	Open   func(s Setting, key func() rfc2136.Key, works func(zone.Claim) bool) (Publisher, error)
	Health *healthcheck.Checker

	open     map[string]*opened // by DNSZone
	gateways map[client.ObjectKey]lookedUp
	sick     map[healthcheck.Check]time.Time // since when each check fails
}

// opened is a publisher and the last instruction for each host.
type opened struct {
	Publisher
	setting Setting
	key     atomic.Pointer[rfc2136.Key]
	told    map[string]told // by host

	mu     sync.Mutex // protects the fields below, which the publisher's goroutine reads
	ranges []netip.Prefix
	dead   map[string]time.Time // hosts of dead clusters that are probed before removal, by their name in Checker: time of the last request
}

// told is the last instruction for a host; nil: remove it.
type told struct{ publication *zone.Publication }

// Close ends all publishers. What they published stays.
func (r *Reconciler) Close() {
	for name := range r.open {
		r.close(name)
	}
}

// Reconcile reads all objects, passes changes to the publishers, and writes the results.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if r.open == nil {
		r.open, r.gateways = map[string]*opened{}, map[client.ObjectKey]lookedUp{}
		r.sick = map[healthcheck.Check]time.Time{}
	}
	var dnsZones v1alpha1.DNSZoneList
	var dnsRecords v1alpha1.DNSRecordList
	if err := r.Client.List(ctx, &dnsZones); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the DNSZones: %w", err)
	}
	if err := r.Client.List(ctx, &dnsRecords); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the DNSRecords: %w", err)
	}
	sources, err := r.sources(ctx, dnsRecords.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan := zones.Decide(zones.Input{Zones: dnsZones.Items, Records: dnsRecords.Items, Sources: sources})
	if err := r.prepare(ctx, plan, dnsZones.Items); err != nil {
		return ctrl.Result{}, err
	}
	if done, err := r.hold(ctx, plan, dnsZones.Items, dnsRecords.Items); err != nil || !done {
		return quiet(err)
	}
	r.probe(plan, dnsZones.Items)
	r.tell(plan, dnsRecords.Items)
	if err := r.release(ctx, plan, dnsZones.Items, dnsRecords.Items); err != nil {
		return quiet(err)
	}
	if err := r.report(ctx, plan, dnsZones.Items, dnsRecords.Items); err != nil {
		return quiet(err)
	}
	if len(r.open) == 0 {
		return ctrl.Result{}, nil
	}
	for i := range dnsZones.Items {
		if dnsZones.Items[i].DeletionTimestamp != nil {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
	}
	return ctrl.Result{RequeueAfter: lookAgain}, nil
}

// lookAgain is the interval for changes without an event: Gateways, health, heartbeats that stop, the minutes of a conflict.
const lookAgain = 10 * time.Second

// quiet turns an error of a write to an outdated object into a retry, which need not be logged.
func quiet(err error) (ctrl.Result, error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

// prepare opens, updates or closes the publisher of each zone.
func (r *Reconciler) prepare(ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone) error {
	present := map[string]bool{}
	for i := range dnsZones {
		z, out := &dnsZones[i], plan.Zones[dnsZones[i].Name]
		present[z.Name] = out.Reason != zones.Duplicate
		if !out.Good() {
			continue
		}
		key, err := r.key(ctx, z)
		if err != nil {
			return err
		}
		o := r.open[z.Name]
		if key.problem != "" {
			out.Verdict = zones.Verdict{Reason: zones.NoKey, Message: key.problem}
			if o != nil {
				out.Message += "; the key that was there stays in use"
			}
			continue
		}
		setting := settingOf(z)
		if o != nil && o.setting != setting {
			r.close(z.Name)
			o = nil
		}
		if o == nil {
			o = &opened{setting: setting, told: map[string]told{}, dead: map[string]time.Time{}}
			o.key.Store(&key.Key)
			if o.Publisher, err = r.Open(setting, func() rfc2136.Key { return *o.key.Load() }, r.worksFor(z.Name, o)); err != nil {
				return fmt.Errorf("open the zone of DNSZone %s: %w", z.Name, err)
			}
			r.open[z.Name] = o
		}
		if *o.key.Load() != key.Key {
			o.key.Store(&key.Key)
			r.Log.Info("key changed", "dnszone", z.Name, "key", key.Name)
		}
	}
	for name, o := range r.open {
		if !present[name] {
			r.close(name)
			r.Health.Set(name, nil, nil)
			r.Metrics.forget(name)
		} else {
			r.bury(o, false)
		}
	}
	return nil
}

// close ends a publisher. What it published stays.
func (r *Reconciler) close(name string) {
	o := r.open[name]
	o.Stop()
	r.bury(o, true)
	delete(r.open, name)
}

func settingOf(z *v1alpha1.DNSZone) Setting {
	return Setting{Zone: zones.Canonical(z.Spec.Zone), Primary: withPort(z.Spec.Primary),
		Heartbeat: time.Duration(z.Spec.HeartbeatSeconds) * time.Second,
		Remove:    z.Spec.Removal == v1alpha1.RemovalRemove, PerMinute: z.Spec.MessagesPerMinute}
}

// withPort adds port 53 to an address or name without a port.
func withPort(primary string) string {
	if address, err := netip.ParseAddr(primary); err == nil && address.Is6() {
		return "[" + primary + "]:53"
	}
	if strings.HasSuffix(primary, "]") || !strings.Contains(primary, ":") {
		return primary + ":53"
	}
	return primary
}

// secret is a key, or the reason why there is none.
type secret struct {
	rfc2136.Key
	problem string
}

func (r *Reconciler) key(ctx context.Context, z *v1alpha1.DNSZone) (secret, error) {
	var s corev1.Secret
	name := client.ObjectKey{Namespace: r.Namespace, Name: z.Spec.TSIG.SecretName}
	if err := r.Client.Get(ctx, name, &s); apierrors.IsNotFound(err) {
		return secret{problem: fmt.Sprintf("spec.tsig.secretName: there is no Secret %s", name)}, nil
	} else if err != nil {
		return secret{}, fmt.Errorf("read the key of DNSZone %s: %w", z.Name, err)
	}
	key, err := zones.ReadKey(s.Data)
	if err != nil {
		return secret{problem: fmt.Sprintf("spec.tsig.secretName: Secret %s: %v", name, err)}, nil
	}
	return secret{Key: key}, nil
}

// probe sets the health checks of all hosts, and removes from the plan the addresses that have failed for long.
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
	for check := range r.sick {
		if !known[check] {
			delete(r.sick, check)
		}
	}
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

// tell passes changes to the publishers: publications, and hosts that this cluster leaves.
func (r *Reconciler) tell(plan *zones.Plan, records []v1alpha1.DNSRecord) {
	for name, o := range r.open {
		want, named := map[string]told{}, map[string]bool{}
		for host := range o.told {
			want[host] = told{}
		}
		for i := range records {
			// A record without the finalizer has published nothing. A record that is not published now may have been published by an
			// earlier process.
			if p := plan.Records[keyOf(&records[i])]; p.Zone == name && slices.Contains(records[i].Finalizers, Finalizer) {
				want[p.Host], named[p.Host] = told{}, true
			}
		}
		for host, p := range plan.Zones[name].Hosts { // also if the key is invalid now: the previous key stays in use
			want[host] = told{&p}
		}
		for i := range records {
			if p := plan.Records[keyOf(&records[i])]; p.Zone == name && orphan(&records[i]) && want[p.Host].publication == nil {
				o.Forget(p.Host)
				delete(want, p.Host)
				delete(o.told, p.Host)
			}
		}
		published := len(plan.Zones[name].Hosts) > 0
		for host, t := range want {
			if old, ok := o.told[host]; ok && reflect.DeepEqual(old, t) {
				// Keep the last host: a publisher without hosts also deletes its heartbeat.
				if t.publication == nil && !named[host] && published && o.Host(host).Done {
					o.Forget(host)
					delete(o.told, host)
				}
				continue
			}
			if o.told[host] = t; t.publication != nil {
				o.Set(*t.publication)
			} else {
				o.Remove(host)
			}
		}
	}
}

func orphan(rec *v1alpha1.DNSRecord) bool {
	return rec.DeletionTimestamp != nil && rec.Spec.DeletionPolicy == v1alpha1.DeletionPolicyOrphan
}

func keyOf(rec *v1alpha1.DNSRecord) zones.Key {
	return zones.Key{Namespace: rec.Namespace, Name: rec.Name}
}

// zonesInUse returns the DNSZones whose deletion must wait, each with one of its records.
func zonesInUse(plan *zones.Plan, records []v1alpha1.DNSRecord) map[string]string {
	out := map[string]string{}
	for i := range records {
		p := plan.Records[keyOf(&records[i])]
		if p.Zone != "" && (p.Good() || slices.Contains(records[i].Finalizers, Finalizer)) {
			out[p.Zone] = records[i].Namespace + "/" + records[i].Name
		}
	}
	return out
}

// hold adds the finalizer to objects that are about to be published. It returns false if it changed an object; then the next run
// continues.
func (r *Reconciler) hold(
	ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord,
) (done bool, err error) {
	done = true
	inUse := zonesInUse(plan, records)
	for i := range dnsZones {
		z := &dnsZones[i]
		if _, used := inUse[z.Name]; used && z.DeletionTimestamp == nil && !slices.Contains(z.Finalizers, Finalizer) {
			done = false
			if err := r.finalizers(ctx, z, append(slices.Clone(z.Finalizers), Finalizer)); err != nil {
				return false, err
			}
		}
	}
	for i := range records {
		rec := &records[i]
		if p := plan.Records[keyOf(rec)]; p.Good() && r.open[p.Zone] != nil && !slices.Contains(rec.Finalizers, Finalizer) {
			done = false
			if err := r.finalizers(ctx, rec, append(slices.Clone(rec.Finalizers), Finalizer)); err != nil {
				return false, err
			}
		}
	}
	return done, nil
}

// release removes the finalizer from deleted objects whose records are gone from the zone.
func (r *Reconciler) release(ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord) error {
	for i := range records {
		rec := &records[i]
		if rec.DeletionTimestamp == nil || !slices.Contains(rec.Finalizers, Finalizer) || !r.gone(plan, rec) {
			continue
		}
		if err := r.finalizers(ctx, rec, without(rec.Finalizers)); err != nil {
			return err
		}
		rec.Finalizers = without(rec.Finalizers)
		r.Log.Info("record released", "namespace", rec.Namespace, "name", rec.Name, "host", rec.Spec.Host, "policy", rec.Spec.DeletionPolicy)
	}
	inUse := zonesInUse(plan, records)
	for i := range dnsZones {
		z := &dnsZones[i]
		if _, used := inUse[z.Name]; used || z.DeletionTimestamp == nil || !slices.Contains(z.Finalizers, Finalizer) || r.beats(z) {
			continue
		}
		if err := r.finalizers(ctx, z, without(z.Finalizers)); err != nil {
			return err
		}
	}
	return nil
}

// lastBeat is how long the deletion of a DNSZone waits until this cluster's heartbeat is deleted, because otherwise other clusters would
// report it as silent. The wait has a limit because orphans keep the heartbeat, and a primary that does not answer cannot delete it.
const lastBeat = 30 * time.Second

// beats reports whether this cluster's heartbeat is about to be deleted from a zone that is being deleted.
func (r *Reconciler) beats(z *v1alpha1.DNSZone) bool {
	o := r.open[z.Name]
	if o == nil || r.Now().Sub(z.DeletionTimestamp.Time) > lastBeat {
		return false
	}
	known := o.Zone()
	return known.Reason == "" && slices.Contains(known.Clusters, r.ClusterID)
}

// gone reports whether the zone, as read back, has nothing that only this record published, or whether that does not matter.
func (r *Reconciler) gone(plan *zones.Plan, rec *v1alpha1.DNSRecord) bool {
	if orphan(rec) {
		return true
	}
	p := plan.Records[keyOf(rec)]
	o := r.open[p.Zone]
	return o != nil && o.Host(p.Host).Done
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == Finalizer })
}

// finalizers writes the finalizers if the object has not changed since it was read.
func (r *Reconciler) finalizers(ctx context.Context, object client.Object, finalizers []string) error {
	changed, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T", object)
	}
	changed.SetFinalizers(finalizers)
	patch := client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("change the finalizers of %T %s: %w", object, object.GetName(), err)
	}
	return nil
}
