// Package steering shows from outside that pods are answered by their node's cache, and by kube-dns whenever that cache is
// not there: the built binaries, pods made by the reference plugins through a real conflist, real network namespaces.
//
// It must never look into the products: what it knows of them is what an operator can see, their output, their files and
// the kernel's state.
//
// Failure policy: a test that cannot run here gives the reason through testutil.Skip; everything else fails it, with the agent's
// log.
package steering
