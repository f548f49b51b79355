package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Name is the name of the one NodeDNS that a cluster may have.
const Name = "default"

// NodeDNS selects the nodes that run the cache. Without a NodeDNS, every node runs it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=nodedns,singular=nodedns
// +kubebuilder:printcolumn:name=Accepted,type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name=Applied,type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].reason`
// +kubebuilder:printcolumn:name=Eligible,type=integer,JSONPath=`.status.eligible`
// +kubebuilder:printcolumn:name=Ready,type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name=Excluded,type=integer,JSONPath=`.status.excluded`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="a cluster has one NodeDNS, and its name is default"
type NodeDNS struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec NodeDNSSpec `json:"spec,omitempty"`
	// +optional
	Status NodeDNSStatus `json:"status,omitempty"`
}

// NodeDNSList is a list of NodeDNS objects, as the API server returns it.
//
// +kubebuilder:object:root=true
type NodeDNSList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeDNS `json:"items"`
}

// NodeDNSSpec is the desired placement of the cache, and of cluster DNS.
type NodeDNSSpec struct {
	// nodePlacement chooses the nodes that run the cache.
	// +optional
	NodePlacement NodePlacement `json:"nodePlacement,omitempty"`
	// clusterDNS places the pods of kube-dns itself. If unset, they run where their own manifest allows it; what the controller had
	// set before is removed again, once the rollout cannot leave kube-dns without a ready pod.
	// +optional
	ClusterDNS *ClusterDNS `json:"clusterDNS,omitempty"`
}

// The modes of ClusterDNS.
const (
	ModeDryRun = "DryRun"
	ModeApply  = "Apply"
)

// ClusterDNS is the desired placement of kube-dns's pods.
type ClusterDNS struct {
	// nodePlacement chooses the nodes that may run kube-dns, among those that its pods' own manifest allows. An empty nodeSelector
	// restricts nothing. tolerations are written only into a manifest that has none; if it has some, they must tolerate the same taints.
	// On OpenShift, nodePlacement is written into spec.nodePlacement of dns.operator.
	// +optional
	NodePlacement NodePlacement `json:"nodePlacement,omitempty"`
	// mode is DryRun (the conditions report what would be written) or Apply.
	//
	// +optional
	// +kubebuilder:default=DryRun
	// +kubebuilder:validation:Enum=DryRun;Apply
	Mode string `json:"mode,omitempty"`
	// minReady is the number of kube-dns pods that must stay ready during a change. A change that could leave fewer than
	// this, and fewer than are ready now, is refused. While fewer are ready, ClusterDNSAvailable is False.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinReady int32 `json:"minReady,omitempty"`
}

// NodePlacement selects nodes as nodeSelector and tolerations of a pod do. For the cache, it can only narrow the choice of the DaemonSet,
// which runs on Linux nodes except virtual ones (virtual kubelets).
type NodePlacement struct {
	// nodeSelector lists the labels that a node must have, all of them. If empty, the default is used, which is currently
	// kubernetes.io/os: linux; this default is subject to change. If set, it replaces the default. clusterDNS has no default.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$'))",message="a key is a label's: NAME or PREFIX/NAME, NAME of at most 63 letters, digits, '-', '_' and '.' that begins and ends with a letter or digit, PREFIX a DNS name"
	// +kubebuilder:validation:XValidation:rule="!('neardns.io/cache' in self)",message="neardns.io/cache is what the controller writes: select by another label"
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`

	// tolerations lists the taints that a node may have. If unset, every taint is tolerated; under clusterDNS, those that kube-dns's
	// manifest tolerates. If empty, only the taints that every DaemonSet tolerates; under clusterDNS, as if unset.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []Toleration `json:"tolerations,omitzero"`
}

// LabelValue is the value of a label: at most 63 letters, digits, '-', '_' and '.' that begin and end with a letter or digit, or empty.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// Toleration has the fields of a pod's toleration, with the same meaning. It is a separate type because the API server can run
// validation rules only on fields whose length is limited.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && self.key != \"\" || has(self.operator) && self.operator == 'Exists'",message="operator must be Exists where key is empty, which means every key and value",fieldPath=".operator"
// +kubebuilder:validation:XValidation:rule="!(has(self.operator) && self.operator == 'Exists') || !has(self.value) || self.value == \"\"",message="value must be empty where operator is Exists",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",message="effect must be NoExecute where tolerationSeconds is set",fieldPath=".effect"
type Toleration struct {
	// key is the key of the taint. If it is empty, operator must be Exists, and taints of every key and value match.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?))?$`
	Key string `json:"key,omitempty"`

	// operator is Equal (the default) or Exists.
	//
	// +optional
	// +kubebuilder:validation:Enum="";Equal;Exists
	Operator string `json:"operator,omitempty"`

	// value is the value of the taint, if operator is Equal.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Value string `json:"value,omitempty"`

	// effect is the effect of the taint. If empty, every effect is tolerated.
	//
	// +optional
	// +kubebuilder:validation:Enum="";NoSchedule;PreferNoSchedule;NoExecute
	Effect string `json:"effect,omitempty"`

	// tolerationSeconds means the same as in a pod, for kube-dns under clusterDNS. For the cache it has no effect, because the cache is
	// never evicted from a node after a delay.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// NodeDNSStatus is the controller's report on the placement. It counts only nodes on which the DaemonSet can run.
type NodeDNSStatus struct {
	// observedGeneration is the metadata.generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// accepted is the placement in use: the last one that matched at least one node. If unset, every node runs the cache.
	// +optional
	Accepted *NodePlacement `json:"accepted,omitempty"`
	// nodes counts the nodes on which the cache could run.
	// +optional
	Nodes int32 `json:"nodes"`
	// eligible counts the nodes that the placement selects to run the cache.
	// +optional
	Eligible int32 `json:"eligible"`
	// ready counts the eligible nodes that are Ready and whose cache pod is Ready.
	// +optional
	Ready int32 `json:"ready"`
	// excluded counts the nodes with the label neardns.io/cache: excluded, which keeps the cache off them.
	// +optional
	Excluded int32 `json:"excluded"`
	// conditions are Accepted, Applied and Available, and of kube-dns: ClusterDNSAvailable, ClusterDNSProgressing and
	// ClusterDNSDegraded if spec.clusterDNS is set, only ClusterDNSDegraded while an earlier one cannot be removed yet, and
	// WorkersIsolated if it is known on which nodes kube-dns runs.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
