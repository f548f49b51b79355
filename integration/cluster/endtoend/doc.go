// Package endtoend holds what neardns promises on a real Kubernetes node (package node): what a user applies is applied, pods are
// run by the kubelet, and all queries are sent from within pods. `make test-cluster` runs it; it needs root and what that
// target builds, and leaves nothing behind.
//
// A query's own answer reports who gave it: kube-dns here has a zone, who.cluster.local, whose records say whom they were made
// for. That is the pod itself where kube-dns answered it, and the node where the cache did.
package endtoend
