package steer

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// LeastKernel is the oldest kernel release on which the rules are tested (`make test-vm`). The agent does not decide by it:
// distributions backport nftables expressions to old kernels and leave modules out of new ones, so rules.Kind.Supported tries the
// rules themselves.
const LeastKernel = "5.10"

// Kernel is the running kernel's release, as uname -r prints it; empty if unknown.
func Kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// OlderThanTried reports whether a kernel release, for example 6.1.0-56-amd64, is older than LeastKernel; false if it cannot be parsed.
func OlderThanTried(release string) bool {
	var least, have [2]uint
	_, _ = fmt.Sscanf(LeastKernel, "%d.%d", &least[0], &least[1])
	n, _ := fmt.Sscanf(release, "%d.%d", &have[0], &have[1])
	return n == 2 && slices.Compare(have[:], least[:]) < 0
}
