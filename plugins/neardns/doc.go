// Package main is neardns, a chained CNI plugin. When a pod starts, it decides whether the pod's DNS queries may be steered to the
// node's cache, and writes that into the pod's state file. The agent writes the pod table after a trial; a pod that needs no
// trial gets it from the plugin. When the pod ends, the plugin removes both.
//
// It guarantees that a call needs no running agent and no API server or DNS, that stdout has only the CNI result, and that it
// removes none of the host's rules but an ended pod's exemption from node interception.
//
// On failure: ADD returns an error for wrong input (configuration, environment, prevResult). A pod that cannot be steered starts
// without steering, and its state file and the log have the reason, unless the configuration has onUnsupported: fail. If a pod's
// rules cannot be written completely, ADD removes them again. DEL always succeeds, because an error would keep the plugins earlier
// in the conflist from releasing what they own.
package main
