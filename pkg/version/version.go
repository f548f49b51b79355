// Package version is what a program calls itself.
package version

import "runtime/debug"

// String is the module's version as the go command noted it in the program: its tag, or where it was built from a checkout, a
// pseudo-version with the commit; "unknown" where the go command noted none.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
