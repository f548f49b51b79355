// Package resolvconf forms a pod's DNS settings from its policy, the node's resolv.conf, the cluster DNS addresses and an
// overlay, exactly as the kubelet does, and reads and prints resolv.conf files without losing a line.
//
// It is pure: no file, no clock, no kernel, nothing but the standard library, since the plugin links it. Equal input gives
// equal output, in one order. Nothing here is kept or shared, so everything may be called from many goroutines; no argument
// is changed, and no result shares memory with an argument that its caller might change.
//
// Failure policy: a pod always gets settings. An overlay that cannot be applied is dropped whole, and the result has the reason; what
// the pod has without it stays. A resolv.conf that cannot be understood is still printed as it was.
package resolvconf
