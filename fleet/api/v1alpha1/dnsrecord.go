package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DNSRecord is what this cluster publishes for one host in a shared zone. Other clusters may publish their own addresses for the same
// host.
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

// DNSRecordList is a list of DNSRecords, as the API server returns it.
//
// +kubebuilder:object:root=true
type DNSRecordList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSRecord `json:"items"`
}

// DNSRecordSpec is what this cluster publishes for one host.
//
// +kubebuilder:validation:XValidation:rule="[has(self.addresses), has(self.hostname), has(self.addressesFrom)].filter(x, x).size() == 1",message="set exactly one of addresses, hostname and addressesFrom"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.hostname)",message="hostname needs strategy LoadBalanced: only edges answer with it",fieldPath=".hostname"
type DNSRecordSpec struct {
	// host is the name to publish, in a zone of one of the DNSZones; the first label may be *. It cannot be changed, because the
	// records of the old host would stay in the zone.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a DNSRecord keeps its host; make another DNSRecord"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('klb.') && !self.contains('.klb.')",message="the label klb is for regions and clusters of a host"
	Host HostName `json:"host"`

	// addresses lists the addresses to publish for the host.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Addresses []Address `json:"addresses,omitempty"`

	// hostname is a name to publish in place of addresses. Only edges answer with it, by a CNAME.
	// +optional
	Hostname DomainName `json:"hostname,omitempty"`

	// addressesFrom takes the addresses, or the hostname, from the status of an object in the same namespace.
	// +optional
	AddressesFrom *AddressesFrom `json:"addressesFrom,omitempty"`

	PublishOptions `json:",inline"`
}

// PublishOptions is how a cluster publishes a host. A DNSRecord has them for its host, a DNSPolicy for all of its hosts.
//
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.weight)",message="weight needs strategy LoadBalanced",fieldPath=".weight"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'LoadBalanced' || !has(self.geo)",message="geo needs strategy LoadBalanced",fieldPath=".geo"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultGeo) || !self.defaultGeo || has(self.geo)",message="defaultGeo needs a geo",fieldPath=".defaultGeo"
type PublishOptions struct {
	// strategy is Simple (all addresses are equal) or LoadBalanced (edges choose among clusters by geo, health and weight). All
	// clusters that publish the host must have the same strategy. It cannot be changed: delete the object in all clusters, and
	// create it with the other strategy.
	//
	// +optional
	// +kubebuilder:default=Simple
	// +kubebuilder:validation:Enum=Simple;LoadBalanced
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="strategy cannot be changed: delete the object, in all clusters, and create it with the other strategy"
	Strategy Strategy `json:"strategy,omitempty"`

	// ttl is the time in seconds for which resolvers may cache an answer. All clusters that publish the host must have the same TTL.
	//
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TTL int32 `json:"ttl,omitempty"`

	// weight is this cluster's share of the queries, relative to the other clusters of the same geo; the default is 100. With weight 0
	// the cluster is a standby: edges choose it only while no cluster of the same geo with a weight above 0 is healthy.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Weight *int32 `json:"weight,omitempty"`

	// geo is the location of the addresses: a continent (GEO-EU), a country (IE) or a part of a country (US-CA).
	//
	// +optional
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:XValidation:rule="self.matches('^(GEO-(AF|AN|AS|EU|NA|OC|SA)|[A-Z]{2}(-[A-Z0-9]{1,3})?)$')",message="geo is a continent (GEO-AF, -AN, -AS, -EU, -NA, -OC, -SA), a country's two letters (IE), or those and a part of it (US-CA)"
	Geo string `json:"geo,omitempty"`

	// defaultGeo makes edges answer with this geo if no cluster whose geo matches the client's location is healthy.
	// +optional
	DefaultGeo bool `json:"defaultGeo,omitempty"`

	// healthCheck is the check by which edges and the clusters' controllers decide whether an address is healthy.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`

	// adopt applies to addresses that the host had before any cluster published them. If it is true, they are deleted together with the
	// last cluster's records. If it is false, they stay and get back the TTL that they had.
	//
	// +optional
	Adopt bool `json:"adopt,omitempty"`

	// deletionPolicy decides when a deleted DNSRecord disappears. With Delete, the DNSRecord stays until its records are gone from the
	// zone. With Orphan, it disappears at once and its records stay: use this if the primary is gone for good.
	//
	// +optional
	// +kubebuilder:default=Delete
	// +kubebuilder:validation:Enum=Delete;Orphan
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Strategy decides whether edges answer with the addresses of all clusters (Simple) or of one that they choose (LoadBalanced).
type Strategy string

// The strategies.
const (
	StrategySimple       Strategy = "Simple"
	StrategyLoadBalanced Strategy = "LoadBalanced"
)

// DeletionPolicy decides what the deletion of a DNSRecord waits for.
type DeletionPolicy string

// The deletion policies.
const (
	DeletionPolicyDelete DeletionPolicy = "Delete"
	DeletionPolicyOrphan DeletionPolicy = "Orphan"
)

// Address is an IPv4 or IPv6 address in canonical form that clients outside the cluster can reach.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="an address is IPv4 (192.0.2.1) or IPv6 (2001:db8::1) in its usual form"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="an address is one that clients elsewhere can reach: not a loopback, link-local, multicast or unspecified one"
type Address string

// AddressesFrom names the object whose status has the addresses to publish.
type AddressesFrom struct {
	// kind is Service (of type LoadBalancer) or Gateway (of gateway.networking.k8s.io/v1).
	//
	// +required
	// +kubebuilder:validation:Enum=Service;Gateway
	Kind string `json:"kind"`
	// name is the name of the object.
	// +required
	Name ObjectName `json:"name"`
}

// ObjectName is the name of an object.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name is an object's name: letters, digits, '-' and '.', in lower case"
type ObjectName string

// HealthCheck describes how edges and controllers check an address.
//
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TCP' || !has(self.path)",message="path needs protocol HTTP or HTTPS",fieldPath=".path"
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TCP' || !has(self.host)",message="host needs protocol HTTP or HTTPS",fieldPath=".host"
type HealthCheck struct {
	// protocol is HTTP or HTTPS (healthy if the response status is 200 to 299), or TCP (healthy if the connection opens).
	//
	// +required
	// +kubebuilder:validation:Enum=HTTP;HTTPS;TCP
	Protocol string `json:"protocol"`
	// port is the port to connect to.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// path is the path of the HTTP request; the default is "/".
	//
	// +optional
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self.matches('^/[-A-Za-z0-9._~!$&()*+,/:;=@%?]*$')",message="path begins with / and has only characters of a URL"
	Path string `json:"path,omitempty"`
	// host is the name in the Host header of the request, and with HTTPS the name that the certificate must have; the default is the
	// published host, without a leading "*.".
	// +optional
	Host DomainName `json:"host,omitempty"`
}

// DNSRecordStatus is the controller's report on the DNSRecord.
type DNSRecordStatus struct {
	// observedGeneration is the metadata.generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// zone is the name of the DNSZone that contains the host.
	// +optional
	Zone string `json:"zone,omitempty"`
	// clusterID is the ID under which this cluster writes in the zone.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// owners lists the IDs of all clusters that publish the host.
	//
	// +optional
	// +listType=set
	Owners []string `json:"owners,omitempty"`
	// generation is the version number of this cluster's records for the host. It increases with each update that changes them.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// writes counts the changes of the host that the primary has accepted from this controller since it became the leader or the
	// DNSZone was changed.
	// +optional
	Writes int64 `json:"writes,omitempty"`
	// published is what the zone has for the host now, from all clusters.
	// +optional
	Published *Published `json:"published,omitempty"`
	// conditions are Accepted, Programmed, Healthy and UnresolvedConflictDiscovered.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Published is what the zone has for a host, from all clusters: the answer of a plain DNS server, one that is no edge.
type Published struct {
	// strategy is the host's strategy in the zone, which may differ from the spec's until all clusters agree.
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// ttl is the TTL of the host's address records, in seconds.
	// +optional
	TTL int32 `json:"ttl,omitempty"`
	// addresses lists the host's A and AAAA records.
	//
	// +optional
	// +listType=set
	Addresses []string `json:"addresses,omitempty"`
}
