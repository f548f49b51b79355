// Package uniproc makes a process that imports it run Go code on one processor, and does so before most other packages
// are initialised.
//
// A CNI call is sequential, and with one processor the runtime wakes no idle threads. main is too late: the runtime would have to flush
// what package initialisation allocated on the second processor, and the pages that this touches cost as much as the idle threads.
// Packages are initialised in the order of their import paths as soon as their imports are ready (Go specification, "Program
// initialization"), and this one imports only the runtime.
package uniproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
