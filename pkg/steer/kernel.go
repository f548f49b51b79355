package steer

import (
	"strconv"
	"strings"

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

// OlderThanTried reports whether a kernel release is older than LeastKernel; false if it cannot be parsed.
func OlderThanTried(release string) bool {
	least, _ := majorMinor(LeastKernel)
	have, ok := majorMinor(release)
	return ok && (have[0] < least[0] || have[0] == least[0] && have[1] < least[1])
}

// majorMinor reads the first two numbers of a kernel release, for example 6 and 1 of 6.1.0-56-amd64.
func majorMinor(release string) (out [2]int, ok bool) {
	major, rest, found := strings.Cut(release, ".")
	if !found {
		return out, false
	}
	minor := rest
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = rest[:end]
	}
	var errs [2]error
	out[0], errs[0] = strconv.Atoi(major)
	out[1], errs[1] = strconv.Atoi(minor)
	return out, errs[0] == nil && errs[1] == nil
}
