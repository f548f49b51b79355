package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/pkg/testutil"
)

// refusing is an API server without dns.operator. If get or apply is set, it fails calls about Deployments with that error.
type refusing struct {
	client.Client
	get, apply error
	applied    int
	slow       func()                      // while the Deployment is read
	limited    bool                        // the reads of the Deployment have a deadline
	fields     []metav1.ManagedFieldsEntry // the Deployment's managedFields in its answers
}

func (f *refusing) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	if _, ok := object.(*appsv1.Deployment); ok {
		if _, f.limited = ctx.Deadline(); f.slow != nil {
			f.slow()
		}
		if f.get != nil {
			return f.get
		}
	}
	if object.GetObjectKind().GroupVersionKind().Group == operatorKind.Group {
		return &meta.NoKindMatchError{GroupKind: operatorKind.GroupKind()}
	}
	err := f.Client.Get(ctx, key, object, o...)
	if d, ok := object.(*appsv1.Deployment); ok {
		d.ManagedFields = f.fields
	}
	return err
}

// withDNS is a rig with a Deployment of kube-dns, and a NodeDNS that places it.
func withDNS(t *testing.T, want *v1alpha1.ClusterDNS) (*rig, *refusing) {
	t.Helper()
	r := newRig(t, "infra0", "infra1", "w0")
	two := int32(2)
	labels := map[string]string{"k8s-app": "kube-dns"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Spec: appsv1.DeploymentSpec{
		Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/os": "linux"}, Containers: []corev1.Container{{Name: "coredns", Image: "coredns"}}}},
	}, Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}}
	testutil.Must(t, r.store.Create(t.Context(), d))
	r.place(want)
	server := &refusing{Client: r.store}
	r.Client, r.Reader = server, server
	return r, server
}

// Apply does for the Deployment's affinity what server-side apply does. (The store's own takes fields that are left out for null.)
func (f *refusing) Apply(ctx context.Context, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	if f.applied++; f.apply != nil {
		return f.apply
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	d, sent := &appsv1.Deployment{}, &appsv1.Deployment{}
	if err := json.Unmarshal(text, sent); err != nil {
		return err
	}
	if err := f.Client.Get(ctx, client.ObjectKeyFromObject(sent), d); err != nil {
		return err
	}
	d.Spec.Template.Spec.Affinity = sent.Spec.Template.Spec.Affinity
	if sent.Spec.Template.Spec.Affinity != nil {
		f.fields = []metav1.ManagedFieldsEntry{{Manager: placement.FieldManager, Operation: "Apply", FieldsV1: metav1.NewFieldsV1(
			`{"f:spec":{"f:template":{"f:spec":{"f:affinity":{"f:nodeAffinity":{"f:requiredDuringSchedulingIgnoredDuringExecution":{}}}}}}}`)}}
	} else {
		f.fields = nil
	}
	return f.Client.Update(ctx, d)
}

// place sets spec.clusterDNS.
func (r *rig) place(want *v1alpha1.ClusterDNS) {
	r.t.Helper()
	r.edit(func(s *v1alpha1.NodeDNSSpec) { s.ClusterDNS = want })
}

func (r *rig) affinity() *corev1.Affinity {
	r.t.Helper()
	d := &appsv1.Deployment{}
	testutil.Must(r.t, r.store.Get(r.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "coredns"}, d))
	return d.Spec.Template.Spec.Affinity
}

func infraDNS(mode string) *v1alpha1.ClusterDNS {
	return &v1alpha1.ClusterDNS{Mode: mode, NodePlacement: v1alpha1.NodePlacement{NodeSelector: map[string]v1alpha1.LabelValue{"infra": ""}}}
}

// A dry run writes nothing, Apply writes once, and without a placement the field goes and the workload is not written from then on.
func TestClusterDNS(t *testing.T) {
	r, server := withDNS(t, infraDNS(v1alpha1.ModeDryRun))
	step := func(want string, applied int) {
		t.Helper()
		result, err := r.step()
		if err != nil || r.reasons() != "Accepted Applied Available"+want || server.applied != applied {
			t.Errorf("%v, %s, want %s; %d writes, want %d\n%+v", err, r.reasons(), want, server.applied, applied, r.object().Status.Conditions)
		}
		if polls := result.RequeueAfter == pollDNS; polls != (want != "") {
			t.Errorf("%s: next look after %s", want, result.RequeueAfter)
		}
	}
	step(" Available DryRun AsExpected", 0)
	if r.affinity() != nil {
		t.Error("a dry run writes")
	}
	r.place(infraDNS(v1alpha1.ModeApply))
	step(" Available RollingOut AsExpected", 1)
	step(" Available AsExpected AsExpected", 1)
	terms := r.affinity().NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != "infra" {
		t.Errorf("affinity %+v", terms)
	}
	r.place(nil)
	if _, err := r.step(); err != nil || server.applied != 2 {
		t.Errorf("%v, %d writes", err, server.applied)
	}
	if _, err := r.step(); err != nil || r.affinity() != nil || !r.gaveBack {
		t.Errorf("%v, affinity %v", err, r.affinity())
	}
	server.get = errors.New("it is read still")
	step("", 2)
	if noted := r.noted(); !strings.Contains(noted, "Normal DryRun mode: Apply would write") {
		t.Errorf("Events:\n%s", noted)
	}
}

// If the API server refuses a write, that is reported, and the write is tried again.
func TestClusterDNSRefused(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	forbidden := apierrors.NewForbidden(deployments, "coredns", errors.New("no right"))
	r, server := withDNS(t, infraDNS(v1alpha1.ModeApply))
	server.apply = forbidden
	result, err := r.step()
	c := meta.FindStatusCondition(r.object().Status.Conditions, placement.ConditionDNSDegraded)
	const remedy = "kubectl apply -k fleet/install/placement/cluster-dns"
	if err != nil || result.RequeueAfter != pollDNS || c.Reason != placement.WriteRefused || !strings.Contains(c.Message, remedy) {
		t.Errorf("%v, %+v, %+v", err, result, c)
	}
	if !strings.Contains(r.noted(), "Warning WriteRefused") {
		t.Error("no Event warns of it")
	}
	server.apply = nil
	if _, err := r.step(); err != nil || r.affinity() == nil {
		t.Errorf("%v: it is not tried again", err)
	}
	server.get = forbidden
	// The condition about its pods stays as it was decided last.
	r.wantStep("Accepted Applied Available Available NotApplied WriteRefused")
	// An account that may not read it owns no field to remove.
	r.place(nil)
	if _, err := r.step(); err != nil || r.reasons() != "Accepted Applied Available" || !r.gaveBack {
		t.Errorf("%v, %s", err, r.reasons())
	}
}

// If the first read of kube-dns's workload fails, there is no condition about its pods.
func TestClusterDNSUnread(t *testing.T) {
	r, server := withDNS(t, infraDNS(v1alpha1.ModeApply))
	server.get = errors.New("not now")
	r.wantStep("Accepted Applied Available NotApplied WriteRefused")
	server.get = nil
	r.wantStep("Accepted Applied Available Available RollingOut AsExpected")
}

// If another program keeps removing the field, the controller stops writing it for a while.
func TestClusterDNSFight(t *testing.T) {
	r, server := withDNS(t, infraDNS(v1alpha1.ModeApply))
	step := func(writes int, reasons string) {
		t.Helper()
		if _, err := r.step(); err != nil || server.applied != writes || !strings.HasSuffix(r.reasons(), reasons) {
			t.Errorf("%v, %d writes, want %d; %s", err, server.applied, writes, r.reasons())
		}
		d := &appsv1.Deployment{}
		testutil.Must(t, r.store.Get(t.Context(), r.KubeDNS, d))
		d.Spec.Template.Spec.Affinity, server.fields = nil, nil
		testutil.Must(t, r.store.Update(t.Context(), d))
		r.now = r.now.Add(pollDNS)
	}
	for i := range 3 {
		step(i+1, "RollingOut AsExpected")
	}
	step(3, "NotApplied WriteRefused")
	c := meta.FindStatusCondition(r.object().Status.Conditions, placement.ConditionDNSDegraded)
	if !strings.Contains(c.Message, "another program removed the fields 3 times within 10m0s") {
		t.Error(c.Message)
	}
	r.now = r.now.Add(fightTime)
	step(4, "RollingOut AsExpected")
	other := infraDNS(v1alpha1.ModeApply)
	other.NodePlacement.NodeSelector = map[string]v1alpha1.LabelValue{"kubernetes.io/os": "linux"}
	r.place(other)
	for i := range 3 {
		step(5+i, "RollingOut AsExpected")
	}
}

// Slow calls about kube-dns have a deadline, and nodes are moved nevertheless.
func TestClusterDNSSlow(t *testing.T) {
	r, server := withDNS(t, infraDNS(v1alpha1.ModeDryRun))
	object := r.object()
	object.Spec.NodePlacement.NodeSelector = map[string]v1alpha1.LabelValue{"infra": ""}
	testutil.Must(t, r.store.Update(t.Context(), object))
	server.slow = func() { r.now = r.now.Add(fresh + time.Millisecond) }
	if _, err := r.step(); err != nil || !slices.Equal(r.excluded(), []string{"w0"}) || !server.limited {
		t.Errorf("%v, excluded %v, deadline %t", err, r.excluded(), server.limited)
	}
}

// A placement that cannot be removed is logged once, because there may be no NodeDNS that reports it.
func TestClusterDNSKept(t *testing.T) {
	r, _ := withDNS(t, infraDNS(v1alpha1.ModeApply))
	if _, err := r.step(); err != nil || r.affinity() == nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	testutil.Must(t, r.store.Get(t.Context(), r.KubeDNS, d))
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	testutil.Must(t, errors.Join(r.store.Update(t.Context(), d), r.store.Delete(t.Context(), r.object())))
	var log strings.Builder
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		if _, err := r.step(); err != nil || r.affinity() == nil {
			t.Errorf("%v, affinity %v", err, r.affinity())
		}
	}
	if strings.Count(log.String(), "kube-dns keeps the placement") != 1 || !strings.Contains(log.String(), "cannot be removed") {
		t.Errorf("log:\n%s", &log)
	}
}
