// Package records carries what fleet/controller/zones decides into shared zones: it reads DNSZones, DNSRecords, Secrets, Services and
// Gateways, tells the publisher of each zone what this cluster says, and writes finalizers, statuses, Events and metrics.
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

// Finalizer keeps a DNSRecord until what it published is gone from its zone, and a DNSZone until no such record is left.
const Finalizer = "neardns.io/zones"

// withdrawAfter is how long an address fails its health check until this cluster takes it out of the zone. Edges act in seconds by
// themselves; this is for plain servers, and costs a write.
const withdrawAfter = 3 * time.Minute

// Publisher keeps what this cluster says in one zone. Its methods return at once and are safe for concurrent use.
type Publisher interface {
	// Set says all that is to be said of a host; Remove that nothing is to be left of this cluster; Forget that what is there stays.
	Set(p zone.Publication)
	Remove(host string)
	Forget(host string)
	// Host tells what became of the last Set or Remove, Zone what is known of the zone.
	Host(host string) zones.Progress
	Zone() ZoneProgress
	// Stop ends the publisher and waits for it. What was published stays.
	Stop()
}

// ZoneProgress is what a publisher knows of its zone.
type ZoneProgress struct {
	Read            time.Time // when it was read last; zero: never
	Reason, Message string    // why it cannot be read or written now; empty where it can
	Clusters        []string  // sorted
	Silent          []string  // those of them that missed three heartbeats; sorted
}

// Setting is what a publisher is opened with. A change of one of these fields takes a new one.
type Setting struct {
	Zone      string // canonical
	Primary   string // address or name, with the port
	Heartbeat time.Duration
	Remove    bool
	PerMinute int32
}

// Reconciler does all there is to do at each event. Its methods are for one goroutine.
type Reconciler struct {
	Client  client.Client
	Direct  client.Reader // Gateways, which a cluster need not know
	Events  events.EventRecorder
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	// Namespace has the keys' Secrets.
	Namespace string
	ClusterID string
	// Open starts a publisher, which asks key before each message, and works before it takes an address of a dead cluster away.
	Open   func(s Setting, key func() rfc2136.Key, works func(zone.Claim) bool) (Publisher, error)
	Health *healthcheck.Checker

	open     map[string]*opened // by DNSZone
	gateways map[client.ObjectKey]lookedUp
	sick     map[healthcheck.Check]time.Time // since when
}

// opened is a publisher and what it was told.
type opened struct {
	Publisher
	setting Setting
	key     atomic.Pointer[rfc2136.Key]
	told    map[string]told // by host

	mu     sync.Mutex // protects what the publisher's goroutine asks for
	ranges []netip.Prefix
	dead   map[string]time.Time // clusters' hosts that are probed before they are removed, by Checker's name for them: when last asked for
}

// told is the last word about a host; nil: remove it.
type told struct{ publication *zone.Publication }

// Close ends all publishers. What they published stays.
func (r *Reconciler) Close() {
	for name := range r.open {
		r.close(name)
	}
}

// Reconcile reads all, tells publishers what is new, and writes what became of it.
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

// lookAgain is for what nobody tells of: Gateways, targets, heartbeats that end, minutes that a conflict lasts.
const lookAgain = 10 * time.Second

// quiet makes of a write that came too late another look, which is nothing to log.
func quiet(err error) (ctrl.Result, error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

// prepare sees to the publisher of each zone that may have one.
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
	s := Setting{Zone: zones.Canonical(z.Spec.Zone), Primary: withPort(z.Spec.Primary), Heartbeat: time.Duration(z.Spec.HeartbeatSeconds) * time.Second,
		Remove: z.Spec.Removal == v1alpha1.RemovalRemove, PerMinute: z.Spec.MessagesPerMinute}
	return s
}

// withPort adds port 53 to an address or name without one.
func withPort(primary string) string {
	if address, err := netip.ParseAddr(primary); err == nil && address.Is6() {
		return "[" + primary + "]:53"
	}
	if strings.HasSuffix(primary, "]") || !strings.Contains(primary, ":") {
		return primary + ":53"
	}
	return primary
}

// secret is a key, or why there is none.
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

// probe has the targets of all hosts asked, and takes out of the plan those that have failed for long.
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
			c.Host = strings.TrimSuffix(strings.TrimPrefix(p.Host, "*."), ".") // as edges ask
		}
	}
	return c
}

// tell passes on what is new: publications, and hosts that nothing is to be left of.
func (r *Reconciler) tell(plan *zones.Plan, records []v1alpha1.DNSRecord) {
	for name, o := range r.open {
		want, named := map[string]told{}, map[string]bool{}
		for host := range o.told {
			want[host] = told{}
		}
		for i := range records {
			// A record without the finalizer has published nothing. One that is not published now may have been, before this process was.
			if p := plan.Records[keyOf(&records[i])]; p.Zone == name && slices.Contains(records[i].Finalizers, Finalizer) {
				want[p.Host], named[p.Host] = told{}, true
			}
		}
		for host, p := range plan.Zones[name].Hosts { // also where the key has become none: the one that was there stays in use
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
				// Not the last one: a publisher that has left every host takes its heartbeat out, too.
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

// zonesInUse names the DNSZones whose deletion has to wait, with one record each.
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

// hold sets the finalizer on what is about to be published. It reports false where something was changed: then the next look goes on.
func (r *Reconciler) hold(ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord) (done bool, err error) {
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

// release takes the finalizer off what is deleted and gone from its zone.
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

// lastBeat is how long a DNSZone's deletion waits for the end of this cluster's heartbeat. Others would report this cluster as silent, but
// orphans keep it, and a primary that is gone does not take it.
const lastBeat = 30 * time.Second

// beats tells whether a zone that is being deleted is about to lose this cluster's heartbeat.
func (r *Reconciler) beats(z *v1alpha1.DNSZone) bool {
	o := r.open[z.Name]
	if o == nil || r.Now().Sub(z.DeletionTimestamp.Time) > lastBeat {
		return false
	}
	known := o.Zone()
	return known.Reason == "" && slices.Contains(known.Clusters, r.ClusterID)
}

// gone tells whether nothing that only this record said is in the zone, as read back, or whether that does not matter.
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

// finalizers writes them, if the object is still the one that was read.
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
