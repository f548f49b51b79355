// Package v1alpha1 has the Go types of neardns's Kubernetes objects: NodeDNS, DNSZone, DNSRecord and DNSPolicy. (NodeConfig, of the same
// API group, is no Kubernetes object but a file on each node; agent/internal/config reads it.)
//
// controller-gen generates the CustomResourceDefinitions (fleet/install/placement/crd.yaml, fleet/install/zones/crd.yaml) and
// zz_generated.deepcopy.go from these types and their comments. Run it with `make update-golden`; a test in
// integration/cluster-manifests fails if they are out of date.
//
// +kubebuilder:object:generate=true
// +groupName=neardns.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the name of this API.
var GroupVersion = schema.GroupVersion{Group: "neardns.io", Version: "v1alpha1"}

// AddToScheme registers the types in a runtime.Scheme, so that a client can read and write them.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeDNS{}, &NodeDNSList{}, &DNSZone{}, &DNSZoneList{}, &DNSRecord{}, &DNSRecordList{},
		&DNSPolicy{}, &DNSPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
