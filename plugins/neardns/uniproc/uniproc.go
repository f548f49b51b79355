// Package uniproc makes a process that imports it run Go code on one processor, and does so before most other packages
// are initialised.
//
// A CNI call is one thing after another: with one processor the runtime wakes no threads that look for more to do. main is
// too late for it: what the packages' initialisation allocated on the processor that goes away must be handed back, and the
// pages that this touches cost as much as the idle threads. Packages are initialised in the order of their import paths as
// soon as what they import is ready (Go specification, "Program initialization"), and this one imports the runtime alone.
package uniproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
