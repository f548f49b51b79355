// Package resolvconf computes a pod's DNS settings exactly as the kubelet does, from the pod's dnsPolicy and dnsConfig, the node's
// resolv.conf and the cluster DNS addresses, and then merges an overlay into them. It also parses and prints the text of a resolv.conf
// without losing a line.
//
// It is pure: it opens no file and uses neither clock nor kernel. Because the CNI plugin links it, it imports only the standard library
// and pkg/strict. Equal input gives equal output, in the same order. It has no state, so all functions may be called concurrently. It
// changes no argument, and no result shares memory with an argument that the caller might change.
//
// Failure policy: a pod always gets settings. An overlay that cannot be applied is dropped as a whole, and the result has the reason
// and the settings that the pod has without it. A resolv.conf with faults is still printed unchanged.
package resolvconf
