package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// cpu is what the kernel has counted since its start, in ticks of all processors: what programs ran, and what they wanted and the
// host of this virtual machine gave to others (proc(5), /proc/stat, "steal").
type cpu struct{ ran, stolen uint64 }

// readCPU returns nothing where the kernel does not tell.
func readCPU() cpu {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}
	}
	return parseCPU(string(text))
}

// parseCPU reads the first line: cpu user nice system idle iowait irq softirq steal …
func parseCPU(stat string) cpu {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpu{}
	}
	var n [9]uint64
	for i := range n[1:] {
		v, err := strconv.ParseUint(fields[i+1], 10, 64)
		if err != nil {
			return cpu{}
		}
		n[i+1] = v
	}
	return cpu{ran: n[1] + n[2] + n[3] + n[6] + n[7], stolen: n[8]}
}

// since is the share of the CPU time that was wanted and not given.
func (c cpu) since(before cpu) float64 {
	ran, stolen := c.ran-before.ran, c.stolen-before.stolen
	if c.ran < before.ran || c.stolen < before.stolen || ran+stolen == 0 {
		return 0
	}
	return float64(stolen) / float64(ran+stolen)
}

// A machine that is robbed of its processors fails tests that measure time, many at once. Each of them is tried again all the same.
const (
	robbed          = 0.1
	mostAgainRobbed = 12
)

// mayBeTried is how many failed tests may be tried again after a run in which that share was stolen.
func mayBeTried(share float64) int {
	if share > robbed {
		return mostAgainRobbed
	}
	return mostAgain
}

func sayStolen(share float64) string {
	return fmt.Sprintf("%.0f %% of the CPU time that was wanted went to other machines", 100*share)
}
