package main

import (
	"fmt"
	"maps"
	"slices"
)

// arch is what differs between guests of one architecture and of another.
type arch struct {
	program string // qemu's
	board   string // qemu's -machine
	// cpu is the model where it is emulated. It is a plain one: with all that qemu 7.2 can emulate (`max`, which has five levels of page
	// tables on x86), Linux 6.12 once ended by a double fault whose frame no CPU would push, and nothing here needs more than these have.
	cpu     string
	console string // the kernel's name of the serial port
	clock   string // the kernel's parameters
	// guests that share the plan, at most; the less there are, the less each is starved by what else the host does.
	guests   int
	slowness int // the tests' waits are that many times as long as on a real machine: a wait that is not needed costs nothing
}

// architectures are by Go's names, which are also Debian's.
func architectures() map[string]arch {
	return map[string]arch{
		// The clock is one of a known frequency: that of the CPU's counter is measured at boot, and where a busy host disturbs that, the guest's
		// time runs many times too fast. An arm64 CPU reports its counter's frequency itself.
		"amd64": {program: "qemu-system-x86_64", board: "q35", cpu: "Westmere", console: "ttyS0", clock: " tsc=nowatchdog clocksource=hpet",
			guests: 4, slowness: 4},
		"arm64": {program: "qemu-system-aarch64", board: "virt", cpu: "cortex-a57", console: "ttyAMA0", guests: 1, slowness: 8},
	}
}

func findArch(name string) (arch, error) {
	a, ok := architectures()[name]
	if !ok {
		return arch{}, fmt.Errorf("no architecture %s is known: choose one of %v", name, slices.Sorted(maps.Keys(architectures())))
	}
	return a, nil
}
