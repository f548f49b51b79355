package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
)

// takePlain separates the packages below the folders of -plain; all are in one of the two lists.
func (o options) takePlain(packages []string) (others, plain []string) {
	for _, p := range packages {
		if o.isPlain(p) {
			plain = append(plain, p)
		} else {
			others = append(others, p)
		}
	}
	return others, plain
}

func (o options) isPlain(pkg string) bool {
	return slices.ContainsFunc(o.plain, func(folder string) bool { return strings.HasPrefix(short(pkg)+"/", folder+"/") })
}

// buildFlags are those by which a package's tests are built.
func (o options) buildFlags(pkg string) []string {
	if o.race && !o.isPlain(pkg) {
		return []string{"-race"}
	}
	return nil
}

// withBuild lets the command use cgo where the race detector needs it.
func (o options) withBuild(cmd *exec.Cmd, pkg string) *exec.Cmd {
	if o.race && !o.isPlain(pkg) {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	return cmd
}
