// Package programs gives tests the programs that they run: the products as `make build` makes them, and the reference tools that
// hack/tools pins; Add calls the plugin as a runtime does. It owns one folder for each test binary, which goes when the tests have ended.
//
// What make built just before the tests (NEARDNS_BUILT) and what it built of the tools (bin/tools) is taken as it is. The rest is built
// once, when the first test needs a program. In a guest of integration/vm, where Go is not, all come with the tests (NEARDNS_PROGRAMS).
package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Environment.
const (
	given = "NEARDNS_PROGRAMS" // folder of all programs
	built = "NEARDNS_BUILT"    // folder of the products, built of these very sources
)

// products are the packages of the products, from the repository's top.
var products = map[string]string{"neardns": "./plugins/neardns", "neardns-agent": "./agent", "neardns-install": "./install",
	"neardns-edge": "./fleet/edge", "neardns-controller": "./fleet/controller",
	"kubectl-neardns": "./agent/kubectl"}

// toolsModule is the folder of the module that pins the tools.
const toolsModule = "hack/tools"

const (
	cni     = "github.com/containernetworking/cni/"
	plugins = "github.com/containernetworking/plugins/plugins/"
)

// tools are the packages of the tools.
var tools = map[string]string{
	"cnitool": cni + "cnitool", "ptp": plugins + "main/ptp", "bridge": plugins + "main/bridge", "macvlan": plugins + "main/macvlan",
	"host-local": plugins + "ipam/host-local", "coredns": "./coredns",
}

// Set is the programs of one test binary. Its methods may be called at the same time, between the begin and the end of Main.
type Set struct {
	names []string
	dir   string
	make  func() error
}

// Of names the programs: products or tools.
func Of(names ...string) *Set {
	s := &Set{names: names}
	s.make = sync.OnceValue(s.all)
	return s
}

// Main runs the tests of a TestMain, and ends the process.
func (s *Set) Main(m *testing.M) {
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func (s *Set) run(m *testing.M) (code int, err error) {
	if s.dir = os.Getenv(given); s.dir != "" {
		s.make = func() error { return nil }
		return m.Run(), nil
	}
	if s.dir, err = os.MkdirTemp("", "neardns-programs"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	return m.Run(), nil
}

// Dir is the folder of the programs, which Make makes.
func (s *Set) Dir() string { return s.dir }

// Path is where Make leaves a program.
func (s *Set) Path(name string) string { return filepath.Join(s.dir, name) }

// Make sees to it that all are there. It works once; where it failed, it fails every test that needs one.
func (s *Set) Make(t testing.TB) {
	t.Helper()
	if err := s.make(); err != nil {
		t.Fatal(err)
	}
}

func (s *Set) all() error {
	root, err := top()
	if err != nil {
		return err
	}
	for _, name := range s.names {
		pkg, product := products[name]
		made, dir := filepath.Join(os.Getenv(built), name), root
		if !product {
			if pkg = tools[name]; pkg == "" {
				return fmt.Errorf("%s is neither a product nor a tool", name)
			}
			made, dir = filepath.Join(root, "bin/tools", name), filepath.Join(root, toolsModule)
		}
		if _, err := os.Stat(made); err == nil && filepath.IsAbs(made) {
			if err := os.Symlink(made, s.Path(name)); err != nil {
				return err
			}
			continue
		}
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", s.Path(name), pkg)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// top is the folder of the repository, above a test's own.
func top() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, toolsModule)); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("no folder above has " + toolsModule + ": not in the repository")
		}
	}
	return "", err
}
