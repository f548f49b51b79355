// Package callers drives the installed chain by the callers that need no daemon here: CRI-O's way of using libcni, written down
// as a harness (crio_test.go), and the reference cnitool, over the reference plugins ptp, bridge and macvlan. The container
// runtimes themselves are in integration/runtimes.
//
// The list is made by the real installer, the entry by the real agent. It needs root; everything is in namespaces of its own.
package callers
