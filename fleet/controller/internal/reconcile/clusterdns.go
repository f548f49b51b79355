package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
)

// pollDNS is the time after which a run is repeated at the latest, while there is a placement for kube-dns, or one to remove. The workload
// is not watched, so that the account needs no right to list and watch Deployments. A rollout also triggers Reconcile by its endpoints.
const pollDNS = 10 * time.Second

// dnsTimeout limits the calls about kube-dns in one run of Reconcile, because nodes are labelled only after them.
const dnsTimeout = 15 * time.Second

// If another program keeps removing the placement of kube-dns, the same placement is written at most mostWrites times within fightTime.
// Each write starts a rollout, which takes about a minute.
const (
	mostWrites = 3
	fightTime  = 10 * time.Minute
)

// operatorKind is the kind of OpenShift's object for cluster DNS. The only object of this kind is named default.
var operatorKind = schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1", Kind: "DNS"}

// clusterDNS takes one step toward the placement of kube-dns, and returns the conditions about it. want is nil if there is no placement for
// kube-dns: then clusterDNS removes the fields that the controller owns, and once they are gone no longer reads the workload.
func (r *Reconciler) clusterDNS(ctx context.Context, c placement.Cluster, want *v1alpha1.ClusterDNS) []placement.Condition {
	var out []placement.Condition
	if isolation := placement.DNSIsolation(c); isolation.Type != "" {
		out = append(out, isolation)
	}
	if want == nil && r.gaveBack {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	w, err := r.workload(ctx)
	if want == nil && apierrors.IsForbidden(err) { // without the right to read the workload, there is nothing that can be removed
		err = nil
	}
	d := placement.DNSDecision{Conditions: r.dns}
	if err == nil {
		d = placement.DecideDNS(c, w, want)
	}
	if err == nil && d.Write {
		if err = r.fought(d.Spec); err == nil {
			err = r.applyDNS(ctx, w, d.Spec)
		}
		if err == nil {
			r.writes = [mostWrites]time.Time(append(r.writes[1:], r.Now()))
			r.Log.Info("wrote the placement of kube-dns", "spec", d.Spec)
		}
	}
	if err == nil && want == nil && len(d.Conditions) > 0 && !slices.Equal(d.Conditions, r.dns) { // there may be no NodeDNS status for it
		r.Log.Warn("kube-dns keeps the placement", "reason", d.Conditions[0].Message)
	}
	if r.dns = d.Conditions; err != nil {
		d.Failed(err)
		r.Log.Error("cannot read or change the placement of kube-dns; will retry", "error", err)
	}
	r.gaveBack = want == nil && !d.Write && len(d.Conditions) == 0
	return append(d.Conditions, out...)
}

// fought returns an error if spec was written too often lately, because another program removes it each time. Each write starts a rollout.
func (r *Reconciler) fought(spec map[string]any) error {
	if !reflect.DeepEqual(spec, r.wrote) {
		r.wrote, r.writes = spec, [mostWrites]time.Time{}
	}
	if spec == nil || r.Now().Sub(r.writes[0]) > fightTime {
		return nil
	}
	return fmt.Errorf("another program removed the fields %d times within %s: metadata.managedFields names it; place kube-dns there",
		mostWrites, fightTime)
}

// workload reads the object that runs kube-dns: OpenShift's dns.operator or, if there is none, the Deployment.
func (r *Reconciler) workload(ctx context.Context) (w placement.Workload, err error) {
	operator := &unstructured.Unstructured{}
	operator.SetGroupVersionKind(operatorKind)
	err = r.Reader.Get(ctx, client.ObjectKey{Name: "default"}, operator)
	switch {
	case err == nil:
		return placement.Workload{Operator: operator}, nil
	case !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err):
		return w, fmt.Errorf("read dns.operator.openshift.io default: %w", err)
	}
	d := &appsv1.Deployment{}
	if err := r.Reader.Get(ctx, r.KubeDNS, d); client.IgnoreNotFound(err) != nil {
		return w, fmt.Errorf("read the Deployment of kube-dns: %w", err)
	} else if err == nil {
		w.Deployment = d
	}
	return w, nil
}

// applyDNS writes the fields in spec by server-side apply, without force; nil spec removes the controller's fields. The API server refuses
// the write if another manager has set one of the fields to another value, or if the object has changed since it was read.
func (r *Reconciler) applyDNS(ctx context.Context, w placement.Workload, spec map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if w.Operator != nil {
		u.SetGroupVersionKind(operatorKind)
		u.SetName(w.Operator.GetName())
		u.SetResourceVersion(w.Operator.GetResourceVersion())
	} else {
		u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
		u.SetNamespace(w.Deployment.Namespace)
		u.SetName(w.Deployment.Name)
		u.SetResourceVersion(w.Deployment.ResourceVersion)
	}
	if spec != nil {
		text, err := json.Marshal(spec)
		if err != nil {
			return fmt.Errorf("make a patch: %w", err)
		}
		plain := map[string]any{}
		if err := json.Unmarshal(text, &plain); err != nil {
			return fmt.Errorf("make a patch: %w", err)
		}
		u.Object["spec"] = plain
	}
	err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(placement.FieldManager))
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; kubectl apply -k fleet/install/placement/cluster-dns gives the right (chart: placement.clusterDNS=true)", err)
	}
	return err
}
