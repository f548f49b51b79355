// Package runtimes drives the built plugin, installer and agent by real container runtimes, as a kubelet drives them: pods are
// run over CRI, and send queries from within their containers. It has a module of its own, so that what it takes to speak CRI stays out
// of the products' dependencies.
//
// Each runtime is started by its test in the namespaces of testutil's node, with folders and a socket of its own, and is left
// clean: no process, mount, namespace, cgroup or file remains. It needs root; nothing of the machine's own runtime is used
// but its binaries.
package runtimes
