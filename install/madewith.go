package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/attached"
	"github.com/neardns/neardns/pkg/conflist"
)

// madeWith returns the names of the running pods that were started with neardns in their plugin list. It reads libcni's cache: CRI-O stops
// a pod with the list that is cached there, even if the conflist has changed since. A missing cache folder means no pods, and files that
// are not libcni's are ignored.
func madeWith(cache string) ([]string, error) {
	paths, err := attached.List(cache)
	if err != nil {
		return nil, fmt.Errorf("find pods that were made with neardns: %w", err)
	}
	var pods []string
	for _, path := range paths {
		p, err := attached.Read(path)
		if err != nil {
			continue // the pod was stopped meanwhile, or the file is not libcni's
		}
		if list, err := conflist.Read(p.Config); err != nil || !slices.Contains(list.Types, conflist.Type) {
			continue
		}
		pods = append(pods, p.String())
	}
	return pods, nil
}

// few joins at most five names and counts how many more there are.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
