package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
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
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// lists writes what is inside: a CycloneDX list of programs, of the modules that each links, and of Debian's packages in the agent's image;
// and the licences of all of them.
func (r *release) lists(ctx context.Context, out string) error {
	programs, err := r.linked(ctx)
	if err != nil {
		return err
	}
	packages, err := r.packages(ctx)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, "neardns-"+r.version+".cdx.json"), func(w io.Writer) error {
		return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom(r.version, r.clock, programs, packages))
	}); err != nil {
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
func (r *release) packages(ctx context.Context) ([]debian, error) {
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

// bom is the list, by purl (https://github.com/package-url/purl-spec). It has no serial number: two runs make one list.
func bom(version string, clock int64, programs []program, packages []debian) *cyclonedx.BOM {
	var components []cyclonedx.Component
	var edges []cyclonedx.Dependency
	add := func(kind cyclonedx.ComponentType, name, version, purl string) {
		if !slices.ContainsFunc(components, func(c cyclonedx.Component) bool { return c.BOMRef == purl }) {
			components = append(components, cyclonedx.Component{BOMRef: purl, Type: kind, Name: name, Version: version, PackageURL: purl})
		}
	}
	depend := func(ref string, on []string) {
		edges = append(edges, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	root := "pkg:golang/github.com/neardns/neardns@" + version
	var parts, inImage []string
	for _, p := range programs {
		ref := root + "#" + p.name
		parts = append(parts, ref)
		add(cyclonedx.ComponentTypeApplication, p.name, version, ref)
		release := strings.TrimPrefix(p.goes, "go")
		on := []string{"pkg:golang/std@" + release}
		add(cyclonedx.ComponentTypeLibrary, "std", release, on[0])
		for _, m := range p.modules {
			path, v, _ := strings.Cut(m, "@")
			purl := "pkg:golang/" + m
			add(cyclonedx.ComponentTypeLibrary, path, v, purl)
			on = append(on, purl)
		}
		depend(ref, on)
	}
	image := "pkg:oci/neardns-agent?tag=" + version
	add(cyclonedx.ComponentTypeContainer, "neardns-agent", version, image)
	for _, d := range packages {
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", d.name, strings.ReplaceAll(d.version, ":", "%3A"), d.arch)
		add(cyclonedx.ComponentTypeLibrary, d.name, d.version, purl)
		inImage = append(inImage, purl)
	}
	depend(image, inImage)
	depend(root, append(parts, image))
	b := cyclonedx.NewBOM()
	b.Metadata = &cyclonedx.Metadata{
		Timestamp: time.Unix(clock, 0).UTC().Format(time.RFC3339),
		Component: &cyclonedx.Component{BOMRef: root, Type: cyclonedx.ComponentTypeApplication, Name: "neardns", Version: version, PackageURL: root},
	}
	b.Components, b.Dependencies = &components, &edges
	return b
}

// licenceFile is how projects name the texts that a copy of theirs must have beside it.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// licences are the texts of all modules that are linked and of Go itself, by their name in the archive. A module without one is an error:
// somebody must look.
func (r *release) licences(ctx context.Context, programs []program) (map[string]string, error) {
	top := "neardns-" + r.version + "-licences/"
	texts := map[string]string{top + "neardns/LICENSE": filepath.Join(r.src, "LICENSE")}
	root, err := command(ctx, r.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	texts[top+"go/LICENSE"] = filepath.Join(root, "LICENSE")
	modules := map[string]bool{}
	for _, p := range programs {
		for _, m := range p.modules {
			modules[m] = true
		}
	}
	for _, m := range slices.Sorted(maps.Keys(modules)) {
		said, err := command(ctx, r.src, nil, "go", "mod", "download", "-json", m)
		if err != nil {
			return nil, err
		}
		var module struct{ Dir string }
		if err := json.Unmarshal([]byte(said), &module); err != nil {
			return nil, fmt.Errorf("module %s: %w", m, err)
		}
		entries, err := os.ReadDir(module.Dir)
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range entries {
			if !e.IsDir() && licenceFile.MatchString(e.Name()) {
				texts[top+m+"/"+e.Name()], found = filepath.Join(module.Dir, e.Name()), true
			}
		}
		if !found {
			return nil, fmt.Errorf("module %s has no licence that is named as one", m)
		}
	}
	return texts, nil
}
