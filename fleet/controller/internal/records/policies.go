package records

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
)

// policies are all DNSPolicies, what is decided about them, and why DNSRecords of theirs could not be written.
type policies struct {
	items    []v1alpha1.DNSPolicy
	decided  map[zones.Key]*zones.Policy
	problems map[zones.Key]zones.Verdict
	changed  bool // a DNSRecord was written, or had changed since it was read, so the next run has to follow at once
}

// applyPolicies creates, changes and deletes the DNSRecords of DNSPolicies. It does not touch DNSRecords that a person made, nor those
// whose DNSPolicy is missing in the watch cache or is being deleted with --cascade=orphan: the garbage collector handles these, because it
// checks at the API server. Nor does it touch those of a Gateway that cannot be read now. It adds the DNSRecords that it creates, and the
// addresses of the Gateways, to the input in, so that a host stays published when a person deletes their own DNSRecord for it. If a person
// deletes a DNSPolicy's DNSRecord, the host first leaves the zone, because of the finalizer, and a later run creates the DNSRecord again.
func (r *Reconciler) applyPolicies(ctx context.Context, in *zones.Input) (*policies, error) {
	var list v1alpha1.DNSPolicyList
	if r.NoPolicies {
		return &policies{}, nil
	}
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list the DNSPolicies: %w", err)
	}
	gateways, known := map[zones.Key]zones.Gateway{}, map[types.UID]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		key := zones.Key{Namespace: p.Namespace, Name: string(p.Spec.TargetRef.Name)}
		seen := r.gateway(ctx, key)
		gateways[key] = seen.gateway
		known[p.UID] = !seen.gateway.Unread && !slices.Contains(p.Finalizers, metav1.FinalizerOrphanDependents)
		in.Sources[zones.Reference{Namespace: key.Namespace, Kind: zones.GatewayKind.Kind, Name: key.Name}] = seen.source
	}
	out := &policies{items: list.Items, problems: map[zones.Key]zones.Verdict{}}
	out.decided = zones.DecidePolicies(list.Items, gateways, *in)
	present := byKey(in.Records)
	unwanted := map[zones.Key]*v1alpha1.DNSRecord{}
	for key, rec := range present {
		if o := zones.PolicyOf(rec); o != nil && known[o.UID] && rec.DeletionTimestamp == nil {
			unwanted[key] = rec
		}
	}
	for i := range list.Items {
		p := &list.Items[i]
		for _, w := range out.decided[client.ObjectKeyFromObject(p)].Wanted {
			key, is := keyOf(w.Record), present[keyOf(w.Record)]
			delete(unwanted, key)
			switch {
			case is == nil:
				err := r.Client.Create(ctx, w.Record)
				made := w.Record
				if apierrors.IsAlreadyExists(err) { // the watch cache does not have it yet
					made = &v1alpha1.DNSRecord{}
					err = r.Direct.Get(ctx, key, made)
				}
				if err == nil && metav1.IsControlledBy(made, p) {
					in.Records = append(in.Records, *made)
				}
				out.note(key, err)
			case is.DeletionTimestamp != nil || !metav1.IsControlledBy(is, p):
				out.problems[key] = zones.Verdict{Reason: zones.NotWritten,
					Message: "a DNSRecord of this name is being deleted, or is not of this DNSPolicy; when it is gone, another is made"}
			case !reflect.DeepEqual(is.Spec, w.Record.Spec):
				changed := is.DeepCopy()
				changed.Spec = w.Record.Spec
				out.note(key, r.Client.Patch(ctx, changed, client.MergeFromWithOptions(is, client.MergeFromWithOptimisticLock{})))
			}
		}
	}
	for key, rec := range unwanted {
		out.note(key, r.Client.Delete(ctx, rec, client.Preconditions{UID: &rec.UID}))
	}
	return out, nil
}

// note records the result of a write. If the object was changed or deleted since it was read, that is no problem, because the next run
// follows at once.
func (p *policies) note(key zones.Key, err error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		p.changed = true
	} else {
		p.problems[key] = zones.Verdict{Reason: zones.NotWritten, Message: err.Error()}
	}
}

func byKey(records []v1alpha1.DNSRecord) map[zones.Key]*v1alpha1.DNSRecord {
	out := map[zones.Key]*v1alpha1.DNSRecord{}
	for i := range records {
		out[keyOf(&records[i])] = &records[i]
	}
	return out
}

// reportPolicies writes those statuses of DNSPolicies that changed, and emits Events for conditions with a new reason.
func (r *Reconciler) reportPolicies(ctx context.Context, all *policies, records []v1alpha1.DNSRecord) error {
	present := byKey(records)
	r.Metrics.setPolicies(all.decided)
	for i := range all.items {
		p := &all.items[i]
		d := all.decided[client.ObjectKeyFromObject(p)]
		next := p.DeepCopy()
		conditions := next.Status.Conditions
		next.Status = d.Status(present, all.problems)
		now := next.Status.Conditions
		next.Status.ObservedGeneration, next.Status.Conditions = p.Generation, conditions
		setConditions(&next.Status.Conditions, now, p.Generation, r.Now())
		if reflect.DeepEqual(p.Status, next.Status) {
			continue
		}
		if err := r.Client.Status().Update(ctx, next); r.refused(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("write the status of DNSPolicy %s/%s: %w", p.Namespace, p.Name, err)
		}
		r.events(next, p.Status.Conditions, now)
	}
	return nil
}
