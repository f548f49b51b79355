// Package records publishes this cluster's hosts in shared zones, as fleet/controller/zones decides: it reads DNSZones, DNSRecords,
// DNSPolicies, Secrets, Services and Gateways, instructs the publisher of each zone, and writes the DNSRecords of DNSPolicies, finalizers,
// statuses, Events and metrics.
//
// It guarantees that a DNSRecord has the finalizer before it is published, and keeps the finalizer until its records are gone from the
// zone, except with deletionPolicy Orphan. On failure, published records stay in the zone, and the status has the reason.
package records

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
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

// Finalizer delays the deletion of a DNSRecord until its records are gone from the zone, and the deletion of a DNSZone until no DNSRecord
// uses it and, for a limited time (lastBeat), until this cluster's heartbeat is gone from the zone.
const Finalizer = "neardns.io/zones"

// withdrawAfter is how long an address must be unhealthy (three failed probes) before this cluster removes the address from the zone. Edges
// stop answering with it within about half a minute by their own checks; the removal is for clients of plain DNS servers. It comes so late
// because it costs a write to the zone.
const withdrawAfter = 3 * time.Minute

// Publisher writes this cluster's records into one zone. Its methods except Stop return at once, and are safe for concurrent use.
type Publisher interface {
	// Set makes the publisher publish a host, in place of what this cluster published for it before. Remove makes it delete this cluster's
	// records of a host. Forget makes it stop managing a host; the records stay in the zone.
	Set(p zone.Publication)
	Remove(host string)
	Forget(host string)
	// Host returns how far the last Set or Remove of a host is. Zone returns the status of the whole zone.
	Host(host string) zones.Progress
	Zone() ZoneProgress
	// Stop ends the publisher and returns when it has ended. Its records stay in the zone.
	Stop()
}

// ZoneProgress is a publisher's status of its whole zone.
type ZoneProgress struct {
	Read            time.Time // when it was read last; zero: never
	Reason, Message string    // why the zone cannot be read now, or empty
	Clusters        []string  // the IDs of the clusters with a heartbeat or an owner record in the zone, sorted
	Silent          []string  // the IDs of the clusters whose heartbeat has not changed for three of its periods, sorted
}

// Setting configures a publisher. If a field changes, the publisher is replaced by a new one.
type Setting struct {
	Zone      string // canonical
	Primary   string // address or name, with the port
	Heartbeat time.Duration
	Remove    bool  // remove dead clusters' records
	PerMinute int32 // maximum number of updates per minute
}

// Reconciler reconciles all DNSZones, DNSRecords and DNSPolicies in each call of Reconcile. Its methods are for one goroutine.
type Reconciler struct {
	Client  client.Client
	Direct  client.Reader // reads without the watch cache, for example Gateways, because a cluster may lack this kind
	Events  events.EventRecorder
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	// Namespace holds the Secrets of the keys.
	Namespace  string
	ClusterID  string
	NoPolicies bool // the cluster has no DNSPolicy CRD, so none is read
	// Open starts a publisher. The publisher calls key for each message. Before it removes a dead cluster's records of a host, it calls
	// works with that cluster's claim; if works returns true, an address of the claim may still work, and the records stay.
	Open   func(s Setting, key rfc2136.KeyFunc, works func(zone.Claim) bool) (Publisher, error)
	Health *healthcheck.Checker

	open     map[string]*opened // by name of the DNSZone
	gateways map[client.ObjectKey]lookedUp
	sick     map[healthcheck.Check]time.Time // by check whose address is unhealthy: since when
	logged   map[string]time.Time            // by text of an error that refused has logged: when
	unheld   map[zones.Key]time.Time         // DNSRecords whose finalizer the API server refused: when
}

// opened is a running publisher, with the last instruction that it got for each host.
type opened struct {
	Publisher
	setting Setting
	key     atomic.Pointer[rfc2136.Key]
	sent    map[string]instruction // by host
	unread  map[string]bool        // hosts that tell left as they are, because a Gateway cannot be read
	unused  time.Time              // when release first found that the DNSZone is deleted and no DNSRecord uses it; zero: never

	mu     sync.Mutex // guards the fields below, which the publisher's goroutine uses too
	ranges []netip.Prefix
	// health checks of dead clusters' addresses, by the zone name under which healthcheck.Checker has them: when worksFor's function last used
	// them
	dead map[string]time.Time
}

// instruction is what the publisher is to do with a host: publish publication, or remove the host if it is nil.
type instruction struct{ publication *zone.Publication }

// Close stops all publishers. Their records stay in the zones.
func (r *Reconciler) Close() {
	for name := range r.open {
		r.close(name)
	}
}

// Reconcile reads all objects, passes what has changed to the publishers, and writes finalizers and statuses.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if r.open == nil {
		r.open, r.gateways = map[string]*opened{}, map[client.ObjectKey]lookedUp{}
		r.sick = map[healthcheck.Check]time.Time{}
		r.logged, r.unheld = map[string]time.Time{}, map[zones.Key]time.Time{}
	}
	var dnsZones v1alpha1.DNSZoneList
	var dnsRecords v1alpha1.DNSRecordList
	if err := r.Client.List(ctx, &dnsZones); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the DNSZones: %w", err)
	}
	if err := r.Client.List(ctx, &dnsRecords); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the DNSRecords: %w", err)
	}
	maps.DeleteFunc(r.gateways, func(_ client.ObjectKey, g lookedUp) bool { return r.Now().Sub(g.at) >= lookAgain })
	sources, err := r.sources(ctx, dnsRecords.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	in := zones.Input{Zones: dnsZones.Items, Records: dnsRecords.Items, Sources: sources, Unread: map[string]bool{}}
	for i := range dnsZones.Items {
		o := r.open[dnsZones.Items[i].Name]
		in.Unread[dnsZones.Items[i].Name] = o == nil || o.Zone().Read.IsZero()
	}
	policies, err := r.applyPolicies(ctx, &in)
	if err != nil {
		return ctrl.Result{}, err
	}
	maps.DeleteFunc(r.unheld, func(_ zones.Key, at time.Time) bool { return r.Now().Sub(at) >= lookAgain })
	in.Records = slices.DeleteFunc(in.Records, func(rec v1alpha1.DNSRecord) bool {
		_, out := r.unheld[keyOf(&rec)]
		return out && !slices.Contains(rec.Finalizers, Finalizer)
	})
	plan := zones.Decide(in)
	if err := r.prepare(ctx, plan, dnsZones.Items); err != nil {
		return ctrl.Result{}, err
	}
	if done, err := r.hold(ctx, plan, dnsZones.Items, in.Records); err != nil || !done {
		return quiet(err)
	}
	r.probe(plan, dnsZones.Items)
	r.tell(plan, in.Records)
	if err := r.release(ctx, plan, dnsZones.Items, in.Records); err != nil {
		return quiet(err)
	}
	if err := r.report(ctx, plan, dnsZones.Items, in.Records); err != nil {
		return quiet(err)
	}
	if err := r.reportPolicies(ctx, policies, in.Records); err != nil || policies.changed {
		return quiet(err)
	}
	if len(r.open)+len(policies.items) == 0 {
		return ctrl.Result{}, nil
	}
	for i := range dnsZones.Items {
		if dnsZones.Items[i].DeletionTimestamp != nil {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
	}
	return ctrl.Result{RequeueAfter: lookAgain}, nil
}

// lookAgain is the interval of reconcile runs for changes that send no event: Gateways, health, heartbeats that stop, and the minutes
// counted in a conflict's message.
const lookAgain = 10 * time.Second

// quiet schedules the next run in 10 ms if err is nil, or if it only means that the object was changed or deleted since it was read, which
// need not be logged. It returns any other error.
func quiet(err error) (ctrl.Result, error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

// prepare starts, updates or stops the publisher of each DNSZone.
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
			o = &opened{setting: setting, sent: map[string]instruction{}, dead: map[string]time.Time{}}
			o.key.Store(&key.Key)
			if o.Publisher, err = r.Open(setting, func() (rfc2136.Key, error) { return *o.key.Load(), nil }, r.worksFor(z.Name, o)); err != nil {
				out.Verdict = zones.Verdict{Reason: zones.Invalid, Message: "spec.zone: " + err.Error()}
				continue
			}
			r.open[z.Name] = o
		}
		if *o.key.Load() != key.Key {
			o.key.Store(&key.Key)
			r.Log.Info("a DNSZone's TSIG key changed; the new one signs from now on", "dnszone", z.Name, "key", key.Name)
		}
	}
	for name, o := range r.open {
		if !present[name] {
			r.close(name)
			r.Health.Set(name, nil, nil)
		} else {
			r.bury(o, false)
		}
	}
	r.Metrics.keep(plan.Zones)
	return nil
}

// close stops the publisher of a DNSZone. Its records stay in the zone.
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

// secret is a TSIG key. If its Secret has no valid key, problem is the reason; otherwise problem is empty.
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

// tell sends changed instructions to the publishers: what to publish, without the addresses that have been unhealthy for withdrawAfter
// unless no other address of the host is left, and which hosts to remove or to forget. A host of a Gateway that cannot be read stays as it
// is.
func (r *Reconciler) tell(plan *zones.Plan, records []v1alpha1.DNSRecord) {
	for name, o := range r.open {
		want, named, unread := map[string]instruction{}, map[string]bool{}, map[string]bool{}
		o.unread = unread
		for host := range o.sent {
			want[host] = instruction{}
		}
		for i := range records {
			// A record without the finalizer was never published. A record with it that is not to be published now may have been
			// published by an earlier process, so its host is removed.
			if p := plan.Records[keyOf(&records[i])]; p.Zone == name && slices.Contains(records[i].Finalizers, Finalizer) {
				want[p.Host], named[p.Host] = instruction{}, true
				unread[p.Host] = unread[p.Host] || p.Reason == zones.NotReadable
			}
		}
		for host, p := range plan.Zones[name].Hosts { // even if the Secret is invalid now: the publisher keeps the previous key
			p = zones.WithoutSick(p, func(a netip.Addr) bool {
				check, _ := healthcheck.Of(p.Host, a, p.Health)
				since, ok := r.sick[check]
				return ok && r.Now().Sub(since) >= withdrawAfter
			})
			want[host] = instruction{&p}
		}
		for i := range records {
			if p := plan.Records[keyOf(&records[i])]; p.Zone == name && orphan(&records[i]) && want[p.Host].publication == nil {
				o.Forget(p.Host)
				delete(want, p.Host)
				delete(o.sent, p.Host)
			}
		}
		published := len(plan.Zones[name].Hosts) > 0
		for host, t := range want {
			if unread[host] {
				continue
			}
			if old, ok := o.sent[host]; ok && reflect.DeepEqual(old, t) {
				// If nothing is published, do not forget the removed hosts: the publisher deletes this cluster's heartbeat only if
				// Remove was called for a host that it still has.
				if t.publication == nil && !named[host] && published && o.Host(host).Done {
					o.Forget(host)
					delete(o.sent, host)
				}
				continue
			}
			if o.sent[host] = t; t.publication != nil {
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

// zonesInUse returns, by name, the DNSZones that must not be deleted yet, each with the name of one DNSRecord that uses it.
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

// refused reports whether an error means that the API server refuses a change of this one object, for example by an admission policy. It
// logs the error: the other objects must not wait.
func (r *Reconciler) refused(err error) bool {
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsInternalError(err) {
		return false
	}
	if at, ok := r.logged[err.Error()]; !ok || r.Now().Sub(at) > time.Hour {
		r.logged[err.Error()] = r.Now()
		r.Log.Error("the API server refuses a change of one object; the others go on", "error", err)
	}
	return true
}

// hold adds the finalizer to DNSRecords that are about to be published, and to their DNSZones. It returns false if it changed an object:
// publishing then waits for the next run, which sees the finalizer. A record whose finalizer the API server refuses is left out for a time
// of lookAgain.
func (r *Reconciler) hold(
	ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord,
) (done bool, err error) {
	done = true
	inUse := zonesInUse(plan, records)
	for i := range dnsZones {
		z := &dnsZones[i]
		if _, used := inUse[z.Name]; used && z.DeletionTimestamp == nil && !slices.Contains(z.Finalizers, Finalizer) {
			if err := r.finalizers(ctx, z, append(slices.Clone(z.Finalizers), Finalizer)); r.refused(err) {
				continue
			} else if err != nil {
				return false, err
			}
			done = false
		}
	}
	for i := range records {
		rec := &records[i]
		if p := plan.Records[keyOf(rec)]; p.Good() && r.open[p.Zone] != nil && !slices.Contains(rec.Finalizers, Finalizer) {
			done = false
			if err := r.finalizers(ctx, rec, append(slices.Clone(rec.Finalizers), Finalizer)); r.refused(err) {
				r.unheld[keyOf(rec)] = r.Now()
			} else if err != nil {
				return false, err
			}
		}
	}
	return done, nil
}

// release removes the finalizer from deleted DNSRecords for which gone returns true, and from deleted DNSZones that no DNSRecord uses and
// that need not wait for the heartbeat (beats).
func (r *Reconciler) release(ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord) error {
	for i := range records {
		rec := &records[i]
		if rec.DeletionTimestamp == nil || !slices.Contains(rec.Finalizers, Finalizer) || !r.gone(plan, rec) {
			continue
		}
		if err := r.finalizers(ctx, rec, without(rec.Finalizers)); r.refused(err) {
			continue
		} else if err != nil {
			return err
		}
		rec.Finalizers = without(rec.Finalizers)
		r.Log.Info("removed a deleted DNSRecord's finalizer", "namespace", rec.Namespace, "name", rec.Name, "policy", rec.Spec.DeletionPolicy)
	}
	inUse := zonesInUse(plan, records)
	for i := range dnsZones {
		z := &dnsZones[i]
		if _, used := inUse[z.Name]; used || z.DeletionTimestamp == nil || !slices.Contains(z.Finalizers, Finalizer) || r.beats(z) {
			continue
		}
		if err := r.finalizers(ctx, z, without(z.Finalizers)); err != nil && !r.refused(err) {
			return err
		}
	}
	return nil
}

// lastBeat is for how long, at most, a deleted DNSZone that no DNSRecord uses waits for the deletion of this cluster's heartbeat in the
// zone, so that other clusters do not report this cluster as silent. There is a limit because the heartbeat stays if records were left with
// deletionPolicy Orphan, or if the primary does not accept its deletion.
const lastBeat = 30 * time.Second

// beats reports whether the deletion of a DNSZone that no DNSRecord uses must still wait for the deletion of this cluster's heartbeat.
func (r *Reconciler) beats(z *v1alpha1.DNSZone) bool {
	o := r.open[z.Name]
	if o == nil {
		return false
	}
	if o.unused.IsZero() {
		o.unused = r.Now()
	}
	known := o.Zone()
	return r.Now().Sub(o.unused) <= lastBeat && known.Reason == "" && slices.Contains(known.Clusters, r.ClusterID)
}

// gone reports whether a deleted record's finalizer can be removed: the zone, as read back, has none of its records any more, or its
// deletionPolicy is Orphan.
func (r *Reconciler) gone(plan *zones.Plan, rec *v1alpha1.DNSRecord) bool {
	if orphan(rec) {
		return true
	}
	p := plan.Records[keyOf(rec)]
	o := r.open[p.Zone]
	return o != nil && !o.unread[p.Host] && o.Host(p.Host).Done
}

func without(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == Finalizer })
}

// finalizers writes an object's finalizers. It fails if the object has changed since it was read.
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
