package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// The parts of CycloneDX 1.7 that the list needs. testdata/bom.json was written by the format's own library, CycloneDX/cyclonedx-go.
type (
	cycloneDX struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Ref     string `json:"bom-ref"`
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version"`
		URL     string `json:"purl"`
	}
	dependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn"`
	}
)

func (b *cycloneDX) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

// bom is the list, by purl (https://github.com/package-url/purl-spec). It has no serial number: two runs make one list.
func bom(version string, clock int64, programs []program, packages []debian) *cycloneDX {
	b := &cycloneDX{Schema: "http://cyclonedx.org/schema/bom-1.7.schema.json", Format: "CycloneDX", SpecVersion: "1.7", Version: 1}
	add := func(kind, name, version, purl string) {
		if c := (component{purl, kind, name, version, purl}); !slices.Contains(b.Components, c) {
			b.Components = append(b.Components, c)
		}
	}
	depend := func(ref string, on []string) { b.Dependencies = append(b.Dependencies, dependency{ref, on}) }
	root := "pkg:golang/github.com/neardns/neardns@" + version
	var parts, inImage []string
	for _, p := range programs {
		ref := root + "#" + p.name
		parts = append(parts, ref)
		add("application", p.name, version, ref)
		release := strings.TrimPrefix(p.goes, "go")
		on := []string{"pkg:golang/std@" + release}
		add("library", "std", release, on[0])
		for _, m := range p.modules {
			path, v, _ := strings.Cut(m, "@")
			purl := "pkg:golang/" + m
			add("library", path, v, purl)
			on = append(on, purl)
		}
		depend(ref, on)
	}
	image := "pkg:oci/neardns-agent?tag=" + version
	add("container", "neardns-agent", version, image)
	for _, d := range packages {
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", d.name, strings.ReplaceAll(d.version, ":", "%3A"), d.arch)
		add("library", d.name, d.version, purl)
		inImage = append(inImage, purl)
	}
	depend(image, inImage)
	depend(root, append(parts, image))
	b.Metadata = metadata{time.Unix(clock, 0).UTC().Format(time.RFC3339), component{root, "application", "neardns", version, root}}
	return b
}
