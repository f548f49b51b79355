package callers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs is where the tests' binaries are: the products, built once for the run, and the reference tools.
var programs string

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if programs, err = os.MkdirTemp("", "neardns-callers"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	return m.Run(), nil
}

const (
	modCNI     = "github.com/containernetworking/cni/"
	modPlugins = "github.com/containernetworking/plugins/plugins/"
)

// build makes the programs, when the first test asks.
var build = sync.OnceValue(func() error {
	for name, pkg := range map[string]string{"neardns": "./plugins/neardns", "neardns-agent": "./agent", "neardns-install": "./install"} {
		if err := goBuild(name, "-ldflags=-s -w", pkg); err != nil {
			return err
		}
	}
	for _, pkg := range []string{modCNI + "cnitool", modPlugins + "main/ptp", modPlugins + "main/bridge", modPlugins + "main/macvlan", modPlugins + "ipam/host-local"} {
		name := filepath.Base(pkg)
		// make builds the tools beforehand; a plain go test finds none and builds its own.
		made, err := filepath.Abs(filepath.Join("../../bin/tools", name))
		if err != nil {
			return err
		}
		if _, err := os.Stat(made); err == nil {
			if err := os.Symlink(made, program(name)); err != nil {
				return err
			}
			continue
		}
		if err := goBuild(name, "-modfile=go.tool.mod", pkg); err != nil {
			return err
		}
	}
	return nil
})

func goBuild(name string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", program(name)}, args...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

func program(name string) string { return filepath.Join(programs, name) }
