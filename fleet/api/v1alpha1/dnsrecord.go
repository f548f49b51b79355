package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DNSRecord is what this cluster publishes of one host in a shared zone. Other clusters publish theirs next to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=dnsrecords,singular=dnsrecord
// +kubebuilder:printcolumn:name=Host,type=string,JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name=Strategy,type=string,JSONPath=`.spec.strategy`,priority=1
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name=Programmed,type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name=Conflict,type=string,JSONPath=`.status.conditions[?(@.type=="UnresolvedConflictDiscovered")].reason`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type DNSRecord struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec DNSRecordSpec `json:"spec"`
	// +optional
	Status DNSRecordStatus `json:"status,omitempty"`
}

// DNSRecordList is what a client lists.
//
// +kubebuilder:object:root=true
type DNSRecordList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSRecord `json:"items"`
}

// DNSRecordSpec is what the cluster publishes of a host.
//
// +kubebuilder:validation:XValidation:rule="[has(self.addresses), has(self.hostname), has(self.addressesFrom)].filter(x, x).size() == 1",message="one of addresses, hostname and addressesFrom says where the host is"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.weight)",message="weight needs strategy LoadBalanced",fieldPath=".weight"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.geo)",message="geo needs strategy LoadBalanced",fieldPath=".geo"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.hostname)",message="hostname needs strategy LoadBalanced: only edges answer it",fieldPath=".hostname"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGeo) || !self.defaultGeo || has(self.geo)",message="defaultGeo needs a geo",fieldPath=".defaultGeo"
type DNSRecordSpec struct {
	// host is the name that is published, in one of the zones that DNSZones name; the first label may be *. It cannot be changed: the
	// host that it was would stay behind.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a DNSRecord keeps its host; make another DNSRecord"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('klb.') && !self.contains('.klb.')",message="the label klb is for regions and clusters of a host"
	Host HostName `json:"host"`

	// strategy is Simple, where every address is an answer of the same worth, or LoadBalanced, where edges choose by geo, health and
	// weight. All clusters of a host must have the same. It cannot be changed: delete the record, in all clusters, and create it with
	// the other.
	//
	// +optional
	// +kubebuilder:default=Simple
	// +kubebuilder:validation:Enum=Simple;LoadBalanced
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="strategy cannot be changed: delete the DNSRecord, in all clusters, and create it with the other strategy"
	Strategy Strategy `json:"strategy,omitempty"`

	// addresses lists where the host is.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Addresses []Address `json:"addresses,omitempty"`

	// hostname is a name that stands for the addresses. Only edges answer it, by a CNAME.
	// +optional
	Hostname DomainName `json:"hostname,omitempty"`

	// addressesFrom takes the addresses, or the hostname, from the status of an object of the same namespace.
	// +optional
	AddressesFrom *AddressesFrom `json:"addressesFrom,omitempty"`

	// ttl is for how many seconds an answer may be kept. All clusters of a host must have the same.
	//
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TTL int32 `json:"ttl,omitempty"`

	// weight is this cluster's share among those of its geo; 100 where it is not set. With 0 the cluster is a standby: it is an answer
	// while no other is healthy.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Weight *int32 `json:"weight,omitempty"`

	// geo is where the addresses are: a continent (GEO-EU), a country (IE) or a part of one (US-CA).
	//
	// +optional
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:XValidation:rule="self.matches('^(GEO-(AF|AN|AS|EU|NA|OC|SA)|[A-Z]{2}(-[A-Z0-9]{1,3})?)$')",message="geo is a continent (GEO-AF, -AN, -AS, -EU, -NA, -OC, -SA), a country's two letters (IE), or those and a part of it (US-CA)"
	Geo string `json:"geo,omitempty"`

	// defaultGeo makes this geo the answer for clients that no geo matches.
	// +optional
	DefaultGeo bool `json:"defaultGeo,omitempty"`

	// healthCheck is how edges find out whether an address serves.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`

	// adopt makes addresses that were at the host before any cluster published them the clusters' own: they go with the last cluster that
	// publishes them. Without it they stay, with the TTL that they had.
	//
	// +optional
	Adopt bool `json:"adopt,omitempty"`

	// deletionPolicy is what the deletion of the record waits for. With Delete the record is gone when what it published is gone from
	// the zone. With Orphan it is gone at once, and what it published stays: for a primary that is gone for good.
	//
	// +optional
	// +kubebuilder:default=Delete
	// +kubebuilder:validation:Enum=Delete;Orphan
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Strategy is how edges choose among clusters.
type Strategy string

// The strategies.
const (
	StrategySimple       Strategy = "Simple"
	StrategyLoadBalanced Strategy = "LoadBalanced"
)

// DeletionPolicy is what the deletion of a record waits for.
type DeletionPolicy string

// The deletion policies.
const (
	DeletionPolicyDelete DeletionPolicy = "Delete"
	DeletionPolicyOrphan DeletionPolicy = "Orphan"
)

// Address is an IPv4 or IPv6 address in its usual form, that others can reach.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="an address is IPv4 (192.0.2.1) or IPv6 (2001:db8::1) in its usual form"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="an address is one that clients elsewhere can reach: not a loopback, link-local, multicast or unspecified one"
type Address string

// AddressesFrom names an object whose status has addresses.
type AddressesFrom struct {
	// kind is Service (of type LoadBalancer) or Gateway (of gateway.networking.k8s.io/v1).
	//
	// +required
	// +kubebuilder:validation:Enum=Service;Gateway
	Kind string `json:"kind"`
	// name is the object's.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name is an object's name: letters, digits, '-' and '.', in lower case"
	Name string `json:"name"`
}

// HealthCheck is how to check whether an address serves.
//
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TCP' || !has(self.path)",message="path needs protocol HTTP or HTTPS",fieldPath=".path"
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TCP' || !has(self.host)",message="host needs protocol HTTP or HTTPS",fieldPath=".host"
type HealthCheck struct {
	// protocol is HTTP or HTTPS, where an answer of 200 to 299 is healthy, or TCP, where an open connection is.
	//
	// +required
	// +kubebuilder:validation:Enum=HTTP;HTTPS;TCP
	Protocol string `json:"protocol"`
	// port is the one to connect to.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// path of the request; "/" where it is not set.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^/[-A-Za-z0-9._~!$&()*+,/:;=@%?]*$')",message="path begins with / and has only characters of a URL"
	Path string `json:"path,omitempty"`
	// host is the name in the request, which an HTTPS certificate must have; the record's host where it is not set.
	// +optional
	Host DomainName `json:"host,omitempty"`
}

// DNSRecordStatus is what became of the record.
type DNSRecordStatus struct {
	// observedGeneration is the generation of the object that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// zone is the DNSZone that the host is in.
	// +optional
	Zone string `json:"zone,omitempty"`
	// clusterID is this cluster's name in the zone.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// owners lists the clusters that publish the host.
	//
	// +optional
	// +listType=set
	Owners []string `json:"owners,omitempty"`
	// generation is the number of the last version of the host that this cluster published, as read from the zone.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// writes counts the updates of the host that this controller sent since it became the leader.
	// +optional
	Writes int64 `json:"writes,omitempty"`
	// published is what the zone holds for the host.
	// +optional
	Published *Published `json:"published,omitempty"`
	// conditions are Accepted, Programmed, Healthy and UnresolvedConflictDiscovered.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Published is what the zone holds for a host, of all clusters: the answer of a server that knows nothing of neardns.
type Published struct {
	// strategy is the one that the host has in the zone.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// ttl is the host's.
	// +optional
	TTL int32 `json:"ttl,omitempty"`
	// addresses lists the host's address records.
	//
	// +optional
	// +listType=set
	Addresses []string `json:"addresses,omitempty"`
}
