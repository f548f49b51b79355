package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DNSZone is a zone that this cluster shares with others: where its primary server is, by which key it is written, and who in this
// cluster may publish what in it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=dnszones,singular=dnszone
// +kubebuilder:printcolumn:name=Zone,type=string,JSONPath=`.spec.zone`
// +kubebuilder:printcolumn:name=Primary,type=string,JSONPath=`.spec.primary`
// +kubebuilder:printcolumn:name=Cluster,type=string,JSONPath=`.status.clusterID`
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name=Read,type=string,JSONPath=`.status.conditions[?(@.type=="Read")].reason`
// +kubebuilder:printcolumn:name=Records,type=integer,JSONPath=`.status.records`
// +kubebuilder:printcolumn:name=Silent,type=string,JSONPath=`.status.silent`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type DNSZone struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec DNSZoneSpec `json:"spec"`
	// +optional
	Status DNSZoneStatus `json:"status,omitempty"`
}

// DNSZoneList is what a client lists.
//
// +kubebuilder:object:root=true
type DNSZoneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSZone `json:"items"`
}

// DNSZoneSpec is what an administrator wants.
type DNSZoneSpec struct {
	// zone is the zone's name. It cannot be changed: records were published there.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a DNSZone keeps its zone; make another DNSZone"
	Zone DomainName `json:"zone"`

	// primary is the server that takes the zone's updates and transfers: an IP address or a name, with or without a port, which is 53
	// by default. An IPv6 address with a port is in brackets.
	//
	// +required
	// +kubebuilder:validation:MaxLength=259
	// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^(([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*|[[][0-9a-f:.]+[]])(:[1-9][0-9]{0,4})?$') && (!self.startsWith('[') || isIP(self.replace('[', '').split(']')[0])) && (!self.matches('[^:]:[0-9]+$') || int(self.split(':')[self.split(':').size() - 1]) < 65536)",message="primary is ADDRESS, NAME, ADDRESS:PORT or NAME:PORT, in lower case; an IPv6 address with a port is in brackets"
	Primary string `json:"primary"`

	// tsig is the key that signs what is sent.
	// +required
	TSIG TSIGKey `json:"tsig"`

	// publishers lists which namespaces may publish which hosts and addresses. What no entry allows is refused.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Publishers []Publisher `json:"publishers,omitempty"`

	// heartbeatSeconds is the time between two heartbeats of this cluster, give or take a fifth. All clusters of a zone should have the
	// same: others report this cluster after three missed ones.
	//
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`

	// removal is what happens to clusters whose heartbeats end: Report names them in the status and in metrics. Remove also takes
	// what they published out of the zone after six missed heartbeats, but never an address that answers its health check, never a host's
	// last address, and never more than a third of the clusters.
	//
	// +optional
	// +kubebuilder:default=Report
	// +kubebuilder:validation:Enum=Report;Remove
	Removal Removal `json:"removal,omitempty"`

	// messagesPerMinute limits the updates that this cluster sends to the primary. Changes wait for their turn and are sent together.
	//
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=6
	// +kubebuilder:validation:Maximum=60000
	MessagesPerMinute int32 `json:"messagesPerMinute,omitempty"`
}

// Removal is what happens to clusters whose heartbeats end.
type Removal string

// What to do about silent clusters.
const (
	RemovalReport Removal = "Report"
	RemovalRemove Removal = "Remove"
)

// TSIGKey names a Secret in the controller's namespace with the keys name (the key's name on the server), secret (base64, as tsig-keygen
// and keymgr print it) and algorithm (hmac-sha256 where it is missing).
type TSIGKey struct {
	// secretName is the Secret's name. The controller follows the Secret: a new key is used at once.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="secretName is the name of a Secret: letters, digits, '-' and '.', in lower case"
	SecretName string `json:"secretName"`
}

// Publisher allows namespaces to publish hosts.
type Publisher struct {
	// namespaces lists the namespaces; "*" is each.
	//
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Namespaces []NamespaceName `json:"namespaces"`

	// hosts lists the hosts: a name is that name, and "*.NAME" every name below it.
	//
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Hosts []HostName `json:"hosts"`

	// targets lists the ranges that addresses must be in.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Targets []AddressRange `json:"targets,omitempty"`

	// hostnames lists the names that may be published in place of addresses, as hosts does.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Hostnames []HostName `json:"hostnames,omitempty"`
}

// NamespaceName is the name of a namespace, or "*".
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?|[*])$')",message="a namespace's name has letters, digits and '-', in lower case; * is each namespace"
type NamespaceName string

// AddressRange is a range of addresses in CIDR form.
//
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="a range is ADDRESS/BITS, with no bit of the address set beyond BITS"
type AddressRange string

// DomainName is a name without a final dot.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",message="a name has labels of at most 63 letters, digits and '-', in lower case, with dots between them and none at the end"
type DomainName string

// HostName is a name without a final dot, or "*." and such a name.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^([*][.])?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",message="a host has labels of at most 63 letters, digits and '-', in lower case, with dots between them and none at the end; the first one may be *"
type HostName string

// DNSZoneStatus is what the controller knows of the zone.
type DNSZoneStatus struct {
	// observedGeneration is the generation of the object that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// clusterID is this cluster's name in the zone.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// records counts the DNSRecords that are published in the zone.
	// +optional
	Records int32 `json:"records"`
	// clusters lists the clusters that have published or beaten in the zone.
	//
	// +optional
	// +listType=set
	Clusters []string `json:"clusters,omitempty"`
	// silent lists those of them that have missed three heartbeats.
	//
	// +optional
	// +listType=set
	Silent []string `json:"silent,omitempty"`
	// conditions are Accepted, Read and ClustersHeard.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
