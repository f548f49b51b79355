// Package version returns the version of the running program.
package version

import "runtime/debug"

// String returns the module version that the go command recorded in the program: a tag, a pseudo-version with the commit, or "(devel)" if
// it knew neither. It returns "unknown" if the go command recorded none.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
