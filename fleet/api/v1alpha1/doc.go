// Package v1alpha1 is the part of neardns' API that an API server keeps: NodeDNS, DNSZone and DNSRecord. (NodeConfig, of the same group,
// is a file on each node, read by agent/internal/config.)
//
// The CustomResourceDefinitions (fleet/install/placement/crd.yaml, fleet/install/zones/crd.yaml) and zz_generated.deepcopy.go are made
// from these types and their comments by controller-gen; `make update-golden` does it, and a test in integration/cluster-manifests holds
// them to the types.
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

// AddToScheme makes the types known to a client.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeDNS{}, &NodeDNSList{}, &DNSZone{}, &DNSZoneList{}, &DNSRecord{}, &DNSRecordList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
