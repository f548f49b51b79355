// Package kubeletdns compares pkg/resolvconf with what it has to equal: the kubelet's own code, linked. It has a module of its
// own, so that Kubernetes stays out of the products' dependencies. Where the two differ and why stands in README.md.
package kubeletdns
