package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// lists writes what is inside: a CycloneDX list of programs, of the modules that each links, and of Debian's packages in the agent's image;
// and the licences of all of them.
func (r *release) lists(ctx context.Context, out string) error {
	programs, err := r.linked(ctx)
	if err != nil {
		return err
	}
	packages, err := r.packages()
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, "neardns-"+r.version+".cdx.json"), bom(r.version, r.clock, programs, packages).write); err != nil {
		return err
	}
	texts, err := r.licences(ctx, programs)
	if err != nil {
		return err
	}
	return r.pack(filepath.Join(out, "neardns-"+r.version+"-licences.tar.gz"), texts)
}

// program is one of the programs, with what it links on any architecture.
type program struct {
	name    string
	goes    string   // the Go release, such as go1.26.8
	modules []string // path@version
}

// linked reads the programs' own build information.
func (r *release) linked(ctx context.Context) ([]program, error) {
	found := map[string]program{}
	for _, arch := range architectures {
		if err := r.build(ctx, arch); err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(r.bin(arch))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			info, err := buildinfo.ReadFile(filepath.Join(r.bin(arch), e.Name()))
			if err != nil {
				return nil, err
			}
			p := found[e.Name()]
			p.name, p.goes = e.Name(), info.GoVersion
			for _, m := range info.Deps {
				p.modules = append(p.modules, named(m))
			}
			found[e.Name()] = p
		}
	}
	var all []program
	for _, name := range slices.Sorted(maps.Keys(found)) {
		p := found[name]
		slices.Sort(p.modules)
		p.modules = slices.Compact(p.modules)
		all = append(all, p)
	}
	return all, nil
}

func named(m *debug.Module) string {
	if m.Replace != nil {
		m = m.Replace
	}
	return m.Path + "@" + m.Version
}

// debian is a package in the agent's image.
type debian struct{ name, version, arch string }

// copied is the line of Dockerfile.agent that names the packages whose licences the image has.
var copied = regexp.MustCompile(`for p in ([a-z0-9 ]+); do echo "/usr/share/doc/\$p/copyright"`)

// packages are those of Debian that the agent's image has parts of, of each architecture.
func (r *release) packages() ([]debian, error) {
	text, err := os.ReadFile(filepath.Join(r.src, "Dockerfile.agent"))
	if err != nil {
		return nil, err
	}
	line := copied.FindSubmatch(text)
	if line == nil {
		return nil, errors.New("Dockerfile.agent names no packages")
	}
	var all []debian
	for _, arch := range architectures {
		if _, err := os.Lstat(r.basePath(arch)); err != nil {
			return nil, fmt.Errorf("no base: make the images in the same run: %w", err)
		}
		status, err := member(r.basePath(arch), "./var/lib/dpkg/status")
		if err != nil {
			return nil, err
		}
		versions := installed(status)
		for _, name := range strings.Fields(string(line[1])) {
			v, ok := versions[name]
			if !ok {
				return nil, fmt.Errorf("Debian's base for %s has no package %s", arch, name)
			}
			all = append(all, debian{name, v, arch})
		}
	}
	return all, nil
}

// installed reads dpkg's status file: the version of each package.
func installed(status []byte) map[string]string {
	versions := map[string]string{}
	var name string
	lines := bufio.NewScanner(bytes.NewReader(status))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if field, ok := strings.CutPrefix(lines.Text(), "Package: "); ok {
			name = field
		} else if field, ok := strings.CutPrefix(lines.Text(), "Version: "); ok {
			versions[name] = field
		}
	}
	return versions
}

// member is one file out of an archive.
func member(archive, name string) ([]byte, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("%s in %s: %w", name, archive, err)
		}
		if h.Name == name {
			return io.ReadAll(r)
		}
	}
}
