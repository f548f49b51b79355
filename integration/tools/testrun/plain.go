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

// buildFlags are those by which a package's tests are built. A plain one has those of `make build`, whose results the cache then has.
func (o options) buildFlags(pkg string) []string {
	switch {
	case o.isPlain(pkg):
		return []string{"-trimpath"}
	case o.race:
		return []string{"-race"}
	}
	return nil
}

func (o options) withBuild(cmd *exec.Cmd, pkg string) *exec.Cmd {
	if o.isPlain(pkg) {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	return cmd
}
