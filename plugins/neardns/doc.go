// Package main is neardns, a chained CNI plugin. When a pod starts, it decides whether the pod's DNS is steered to the node's cache, and
// writes the pod table and the pod's file; when the pod ends, it removes both.
//
// It guarantees that a call needs no agent, API server, other program or DNS, that only the CNI result is printed on stdout, and that
// what the agent put into the host table stays.
//
// On failure: ADD returns an error only for a wrong configuration or environment. A pod that cannot be steered starts unchanged, with the
// reason in its file and the log, unless the configuration has onUnsupported: fail. No pod is ever left half steered. DEL succeeds on
// every input, because an error would keep the plugins earlier in the chain from releasing what they own.
package main
