package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DNSZone is a DNS zone that this cluster shares with other clusters: its primary server, the TSIG key to write it with, and which
// namespaces may publish which hosts.
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

// DNSZoneList is a list of DNSZones, as the API server returns it.
//
// +kubebuilder:object:root=true
type DNSZoneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSZone `json:"items"`
}

// DNSZoneSpec is the desired configuration of the zone.
type DNSZoneSpec struct {
	// zone is the name of the DNS zone. It cannot be changed, because records were published in it.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a DNSZone keeps its zone; make another DNSZone"
	Zone DomainName `json:"zone"`

	// primary is the server that gets the updates and gives the transfers: an IP address or a name, optionally with a port (53 by
	// default). An IPv6 address with a port is in brackets.
	//
	// +required
	// +kubebuilder:validation:MaxLength=259
	// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^(([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*|[[][0-9a-f:.]+[]])(:[1-9][0-9]{0,4})?$') && (!self.startsWith('[') || isIP(self.replace('[', '').split(']')[0])) && (!self.matches('[^:]:[0-9]+$') || int(self.split(':')[self.split(':').size() - 1]) < 65536)",message="primary is ADDRESS, NAME, ADDRESS:PORT or NAME:PORT, in lower case; an IPv6 address with a port is in brackets"
	Primary string `json:"primary"`

	// tsig is the key that signs updates and transfer requests.
	// +required
	TSIG TSIGKey `json:"tsig"`

	// publishers lists which namespaces may publish which hosts with which addresses or hostnames. A DNSRecord is refused unless entries
	// that allow its host together allow all of its addresses, or its hostname.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Publishers []Publisher `json:"publishers,omitempty"`

	// heartbeatSeconds is the time between two heartbeats of this cluster, plus or minus a fifth. Other clusters report this cluster as
	// silent if its heartbeat does not change for three times this long.
	//
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`

	// removal is what this cluster does about clusters whose heartbeats have stopped. Report names them in the status and in metrics.
	// Remove also deletes their records from the zone after six missed heartbeats, but never an address that passes its health check,
	// never a host's last address, and never the records of more than a third of the clusters.
	//
	// +optional
	// +kubebuilder:default=Report
	// +kubebuilder:validation:Enum=Report;Remove
	Removal Removal `json:"removal,omitempty"`

	// messagesPerMinute limits the DNS updates that this cluster sends to the primary. Changes over the limit wait, and are then sent
	// together.
	//
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=6
	// +kubebuilder:validation:Maximum=60000
	MessagesPerMinute int32 `json:"messagesPerMinute,omitempty"`
}

// Removal is what a cluster does about other clusters whose heartbeats have stopped.
type Removal string

// The values of Removal.
const (
	RemovalReport Removal = "Report"
	RemovalRemove Removal = "Remove"
)

// TSIGKey names a Secret in the controller's namespace with the keys name (the key's name on the server), secret (base64, as tsig-keygen
// and keymgr print it) and algorithm (default: hmac-sha256).
type TSIGKey struct {
	// secretName is the name of the Secret. If the Secret changes, the controller uses the new key from the next message on.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="secretName is the name of a Secret: letters, digits, '-' and '.', in lower case"
	SecretName string `json:"secretName"`
}

// Publisher allows namespaces to publish hosts.
type Publisher struct {
	// namespaces lists the namespaces that may publish; "*" stands for every namespace.
	//
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Namespaces []NamespaceName `json:"namespaces"`

	// hosts lists the hosts that they may publish: a name stands for that name only, "*.NAME" for every name below NAME.
	//
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Hosts []HostName `json:"hosts"`

	// targets lists the address ranges that published addresses must be in.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Targets []AddressRange `json:"targets,omitempty"`

	// hostnames lists the names that may be published in place of addresses, in the same form as hosts.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Hostnames []HostName `json:"hostnames,omitempty"`
}

// NamespaceName is the name of a namespace, or "*" for every namespace.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?|[*])$')",message="a namespace's name has letters, digits and '-', in lower case; * is each namespace"
type NamespaceName string

// AddressRange is an IP address range in CIDR notation.
//
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="a range is ADDRESS/BITS, with no bit of the address set beyond BITS"
type AddressRange string

// DomainName is a name without a final dot.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",message="a name has labels of at most 63 letters, digits and '-', in lower case, with dots between them and none at the end"
type DomainName string

// HostName is a name without a final dot, optionally with "*." in front.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^([*][.])?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",message="a host has labels of at most 63 letters, digits and '-', in lower case, with dots between them and none at the end; the first one may be *"
type HostName string

// DNSZoneStatus is the controller's report on the zone.
type DNSZoneStatus struct {
	// observedGeneration is the metadata.generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// clusterID is the ID under which this cluster writes in the zone.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// records counts the DNSRecords that are published in the zone.
	// +optional
	Records int32 `json:"records"`
	// clusters lists the IDs of the clusters that have records or a heartbeat in the zone.
	//
	// +optional
	// +listType=set
	Clusters []string `json:"clusters,omitempty"`
	// silent lists the IDs of the clusters whose heartbeat has not changed for three of their heartbeat periods.
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
