package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DNSPolicy publishes the host names of a Gateway's listeners with the Gateway's addresses. The controller makes a DNSRecord for each
// host that is in a DNSZone, unless an older DNSPolicy or a DNSRecord of the user has the host, and deletes it when the listener or the
// DNSPolicy is gone.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=dnspolicies,singular=dnspolicy
// +kubebuilder:printcolumn:name=Gateway,type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name=Hosts,type=integer,JSONPath=`.status.records`
// +kubebuilder:printcolumn:name=Published,type=integer,JSONPath=`.status.programmed`
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name=Programmed,type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name=Conflict,type=string,JSONPath=`.status.conditions[?(@.type=="UnresolvedConflictDiscovered")].reason`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a DNSPolicy has at most 63 characters, because its DNSRecords' names begin with it"
type DNSPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec DNSPolicySpec `json:"spec"`
	// +optional
	Status DNSPolicyStatus `json:"status,omitempty"`
}

// DNSPolicyList is a list of DNSPolicies, as the API server returns it.
//
// +kubebuilder:object:root=true
type DNSPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DNSPolicy `json:"items"`
}

// DNSPolicySpec names the Gateway, and how its hosts are published.
type DNSPolicySpec struct {
	// targetRef names the Gateway.
	// +required
	TargetRef GatewayRef `json:"targetRef"`

	PublishOptions `json:",inline"`
}

// GatewayRef names a Gateway in the same namespace, in the form of the Gateway API's policies.
type GatewayRef struct {
	// group is the API group of Gateways.
	//
	// +optional
	// +kubebuilder:default=gateway.networking.k8s.io
	// +kubebuilder:validation:Enum=gateway.networking.k8s.io
	Group string `json:"group,omitempty"`
	// kind is Gateway.
	//
	// +optional
	// +kubebuilder:default=Gateway
	// +kubebuilder:validation:Enum=Gateway
	Kind string `json:"kind,omitempty"`
	// name is the name of the Gateway.
	// +required
	Name ObjectName `json:"name"`
	// sectionName is the name of one listener. Without it, the DNSPolicy is for all listeners.
	// +optional
	SectionName ObjectName `json:"sectionName,omitempty"`
}

// DNSPolicyStatus is the controller's report on the DNSPolicy.
type DNSPolicyStatus struct {
	// observedGeneration is the metadata.generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// records counts the hosts for which the controller makes a DNSRecord.
	// +optional
	Records int32 `json:"records"`
	// programmed counts those of them that the zone has, confirmed by reading it back.
	// +optional
	Programmed int32 `json:"programmed"`
	// unpublished lists the listeners and hosts that are not known to be published, with the reason.
	//
	// +optional
	// +listType=atomic
	Unpublished []UnpublishedHost `json:"unpublished,omitempty"`
	// conditions are Accepted, Programmed, Healthy and UnresolvedConflictDiscovered: the last three collect those of the DNSRecords.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UnpublishedHost is a listener's host that is not known to be in the zone, or a listener without a host.
type UnpublishedHost struct {
	// listener is the name of the Gateway's listener.
	Listener string `json:"listener"`
	// host is the listener's host name, or empty.
	// +optional
	Host string `json:"host,omitempty"`
	// record is the name of the host's DNSRecord, or empty if there is none.
	// +optional
	Record string `json:"record,omitempty"`
	// reason is NoHost, NoZone, Conflicted or NotWritten, or that of the DNSRecord's condition Accepted or Programmed.
	Reason string `json:"reason"`
	// message has the details.
	Message string `json:"message"`
}
