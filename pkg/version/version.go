// Package version returns the version of the running program.
package version

import "runtime/debug"

// String returns the module version that the go command recorded in the program: the tag, or a pseudo-version with the commit if it
// was built from a checkout. It returns "unknown" if the go command recorded none.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
