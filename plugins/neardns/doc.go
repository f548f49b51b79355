// Package main is neardns, a chained CNI plugin. It owns a pod's start and end on this node: it decides whether the pod's
// DNS is steered to the node's cache, writes the pod table and the pod's file, and takes both away again.
//
// It must never need the agent, the API server, another program or DNS; never print anything but the result on stdout; never
// edit or remove what the agent put into the host table.
//
// Failure policy: ADD fails only for a configuration or an environment that is wrong. A pod that cannot be steered is
// passed through as it was, with the reason in its file and the log, unless the configuration says onUnsupported: fail; no
// pod is ever left half steered. DEL succeeds on every input, because an error there would keep the plugins before us from
// releasing what they hold.
package main
