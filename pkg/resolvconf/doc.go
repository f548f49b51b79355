// Package resolvconf computes the DNS settings that the kubelet gives pods, from the node's resolv.conf and the cluster DNS addresses, and
// merges an overlay into a pod's own settings as the kubelet merges a dnsConfig. It also parses and prints the text of a resolv.conf
// without losing a line.
//
// It is pure: it opens no file and uses neither clock nor kernel. Because the CNI plugin links it, it imports only the standard library
// and pkg/strict. Equal input gives equal output, in the same order. It has no state, so all functions may be called concurrently. It
// changes no argument, and no result shares memory with an argument that the caller might change.
//
// Failure policy: an overlay that would take a pod's last nameserver is an error, and the caller leaves it out. A resolv.conf with faults
// is still printed unchanged.
package resolvconf
