// Package answers owns black-box tests of pods' answers: the same by the cache as by kube-dns, whatever stands in kube-dns's
// Corefile. kube-dns is a stock CoreDNS here, the agent is configured by install/base, and the ConfigMap that both have mounted
// is changed as the kubelet changes one.
//
// It must never touch the machine's own namespaces, and imports no product code but pkg.
//
// Failure policy: an answer is compared with the one that a pod next to it gets, which is not steered; times are awaited.
//
// Covered elsewhere: what each real-world Corefile says (internal/dns/forward/kubedns), real clusters (integration/cluster).
package answers
