package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// licenceFile is how projects name the texts that a copy of theirs must have next to it.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// licences are the texts of all modules that are linked and of Go itself, by their name in the archive. A module without one is an error:
// a person must look.
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
