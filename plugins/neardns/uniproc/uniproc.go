// Package uniproc limits a process that imports it to one processor for Go code (GOMAXPROCS=1), before most other packages are
// initialized.
//
// A CNI call does one thing after another, and with one processor the Go runtime does not wake idle threads, which costs CPU
// time. Setting it in main is too late: the runtime then has to flush what package initialization allocated on the second
// processor, which costs as much. Packages are initialized in the order of their import paths as soon as their imports are
// ready (Go specification, "Program initialization"), and this one imports only the runtime.
package uniproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
