package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

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
