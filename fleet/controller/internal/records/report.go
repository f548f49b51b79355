package records

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
)

// report writes those statuses of DNSRecords and DNSZones that changed, and emits Events for conditions with a new reason.
func (r *Reconciler) report(ctx context.Context, plan *zones.Plan, dnsZones []v1alpha1.DNSZone, records []v1alpha1.DNSRecord) error {
	r.Metrics.begin()
	for i := range records {
		if err := r.reportRecord(ctx, plan, &records[i]); err != nil && !r.refused(err) {
			return err
		}
	}
	inUse := zonesInUse(plan, records)
	for i := range dnsZones {
		if err := r.reportZone(ctx, plan, &dnsZones[i], inUse[dnsZones[i].Name]); err != nil && !r.refused(err) {
			return err
		}
	}
	r.Metrics.end()
	return nil
}

func (r *Reconciler) reportRecord(ctx context.Context, plan *zones.Plan, rec *v1alpha1.DNSRecord) error {
	if rec.DeletionTimestamp != nil && !slices.Contains(rec.Finalizers, Finalizer) {
		return nil // only other programs' finalizers delay the deletion
	}
	p := plan.Records[keyOf(rec)]
	z := plan.Zones[p.Zone]
	if z == nil {
		z = &zones.Zone{}
	}
	progress, checked, sick := zones.Progress{}, []netip.Addr(nil), []netip.Addr(nil)
	o := r.open[p.Zone]
	if o != nil {
		progress = o.Host(p.Host)
		progress.Done = progress.Done && (p.Good() || !o.unread[p.Host])
		if publication, ok := z.Hosts[p.Host]; ok && p.Good() {
			for _, c := range checksOf(&publication) {
				checked = append(checked, c.Address)
				if _, ok := r.sick[c]; ok {
					sick = append(sick, c.Address)
				}
			}
		}
	}
	progress.Kept = slices.Contains(rec.Finalizers, Finalizer)
	next := rec.DeepCopy()
	s := &next.Status
	s.ObservedGeneration, s.Zone, s.ClusterID = rec.Generation, p.Zone, r.ClusterID
	if o != nil {
		s.Owners, s.Generation, s.Writes, s.Published = progress.Owners, int64(progress.Generation), int64(progress.Writes), progress.Held
	}
	conditions := zones.Conditions(p, z, progress, checked, sick, r.Now())
	r.Metrics.record(p.Zone, conditions)
	setConditions(&s.Conditions, conditions, rec.Generation, r.Now())
	if reflect.DeepEqual(rec.Status, next.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("write the status of DNSRecord %s/%s: %w", rec.Namespace, rec.Name, err)
	}
	r.events(next, rec.Status.Conditions, conditions)
	rec.Status = next.Status // for the status of its DNSPolicy
	return nil
}

func (r *Reconciler) reportZone(ctx context.Context, plan *zones.Plan, z *v1alpha1.DNSZone, waits string) error {
	p := plan.Zones[z.Name]
	next := z.DeepCopy()
	s := &next.Status
	s.ObservedGeneration, s.ClusterID, s.Records = z.Generation, r.ClusterID, int32(p.Records)
	var known *ZoneProgress
	if o := r.open[z.Name]; o != nil {
		progress := o.Zone()
		known = &progress
		s.Clusters, s.Silent = progress.Clusters, progress.Silent
	}
	conditions := zoneConditions(p, z, known, waits)
	r.Metrics.zone(z.Name, conditions)
	setConditions(&s.Conditions, conditions, z.Generation, r.Now())
	if reflect.DeepEqual(z.Status, next.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return fmt.Errorf("write the status of DNSZone %s: %w", z.Name, err)
	}
	r.events(next, z.Status.Conditions, conditions)
	return nil
}

// zoneConditions returns the conditions of a DNSZone. known is nil if no publisher runs. waits names a DNSRecord for which the
// DNSZone's deletion waits, or is empty.
func zoneConditions(p *zones.Zone, z *v1alpha1.DNSZone, known *ZoneProgress, waits string) []metav1.Condition {
	make := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	accepted := make(zones.ConditionAccepted, metav1.ConditionTrue, p.Reason, p.Message)
	if !p.Good() {
		accepted.Status = metav1.ConditionFalse
	}
	if z.DeletionTimestamp != nil {
		accepted = make(zones.ConditionAccepted, metav1.ConditionFalse, zones.Deleting,
			"the DNSZone is being deleted; it waits until this cluster's heartbeat is out of the zone")
		if waits != "" {
			accepted.Message = "the DNSZone is being deleted; it waits for what is in it: DNSRecord " + waits
		}
	}
	read := make(zones.ConditionRead, metav1.ConditionFalse, zones.NoPublishing, "this cluster does not read the primary: "+p.Message)
	heard := make(zones.ConditionClustersHeard, metav1.ConditionUnknown, zones.NotRead, "the zone was not read yet")
	switch {
	case known == nil:
	case known.Reason != "":
		read.Reason, read.Message = known.Reason, known.Message
	case known.Read.IsZero():
		read.Reason, read.Message = zones.NotRead, "the zone was not read yet"
	default:
		read = make(zones.ConditionRead, metav1.ConditionTrue, zones.ReadReason, fmt.Sprintf("%s is read from %s", z.Spec.Zone, z.Spec.Primary))
	}
	switch {
	case known == nil || known.Read.IsZero():
	case len(known.Silent) > 0:
		heard = make(zones.ConditionClustersHeard, metav1.ConditionFalse, zones.Silent,
			fmt.Sprintf("no heartbeat of %s for three intervals; if a cluster is gone for good: neardns-controller zones remove",
				strings.Join(known.Silent, ", ")))
	default:
		heard = make(zones.ConditionClustersHeard, metav1.ConditionTrue, zones.AllHeard, "every cluster's heartbeat moves")
	}
	return []metav1.Condition{accepted, read, heard}
}

// setConditions sets conditions in a status. LastTransitionTime changes only if the condition's status changes.
func setConditions(into *[]metav1.Condition, conditions []metav1.Condition, generation int64, now time.Time) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
		c.Message = shortened(c.Message, 4096)
		meta.SetStatusCondition(into, c)
	}
}

// shortened truncates a text to most bytes. The API server's limits are 32 KiB for a condition's message and 1 KiB for an Event's note.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// unfinished are the reasons for which no Event is emitted: work is in progress, another condition has the cause, or there is no check.
var unfinished = []string{zones.Writing, zones.Leaving, zones.NotRead, zones.NotAccepted, zones.NotChecked}

// events emits an Event and a log line for each condition whose reason has changed, except for the reasons in unfinished, and except for
// NoConflict and AllHeard if the condition is new.
func (r *Reconciler) events(object client.Object, before, now []metav1.Condition) {
	target, ok := object.(runtime.Object)
	if !ok {
		return
	}
	for _, c := range now {
		old := meta.FindStatusCondition(before, c.Type)
		if old != nil && old.Reason == c.Reason || slices.Contains(unfinished, c.Reason) {
			continue
		}
		if old == nil && (c.Reason == zones.NoConflict || c.Reason == zones.AllHeard) {
			continue
		}
		good := (c.Status == metav1.ConditionTrue) != (c.Type == zones.ConditionConflict)
		kind := corev1.EventTypeWarning
		if good || c.Reason == zones.Deleting {
			kind = corev1.EventTypeNormal
		}
		r.Events.Eventf(target, nil, kind, c.Reason, c.Type, "%s", shortened(c.Message, 1000))
		r.Log.Info("a condition of a DNSZone, DNSRecord or DNSPolicy has a new reason", "namespace", object.GetNamespace(),
			"name", object.GetName(), "type", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
	}
}
