package steering

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs is where the tests' binaries are: the products, built once for the run, and the reference plugins.
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
	// In a guest of integration/vm, where Go's caches are not, they come with the tests.
	if made := os.Getenv("NEARDNS_PROGRAMS"); made != "" {
		programs = made
		return m.Run(), nil
	}
	if programs, err = os.MkdirTemp("", "neardns-integration"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	return m.Run(), nil
}

// build makes the programs, when the first test that needs them asks.
var build = sync.OnceValue(func() error {
	if os.Getenv("NEARDNS_PROGRAMS") != "" {
		return nil
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	for name, pkg := range map[string]string{"neardns": "./plugins/neardns", "neardns-agent": "./agent", "neardns-install": "./install"} {
		if err := goBuild(root, name, "-buildvcs=false", "-ldflags=-s -w", pkg); err != nil {
			return err
		}
	}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for _, pkg := range []string{plugins + "main/ptp", plugins + "main/bridge", plugins + "ipam/host-local"} {
		name := filepath.Base(pkg)
		// make builds the tools beforehand; a plain go test finds none and builds its own.
		if made := filepath.Join(root, "bin/tools", name); os.Symlink(made, filepath.Join(programs, name)) == nil {
			if _, err := os.Stat(made); err == nil {
				continue
			}
			_ = os.Remove(filepath.Join(programs, name))
		}
		if err := goBuild(root, name, "-buildvcs=false", "-modfile=go.tool.mod", pkg); err != nil {
			return err
		}
	}
	return nil
})

func goBuild(root, name string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-o", filepath.Join(programs, name)}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

func program(name string) string { return filepath.Join(programs, name) }
