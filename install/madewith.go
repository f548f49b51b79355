package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/attached"
	"github.com/neardns/neardns/pkg/conflist"
)

// madeWith names the running pods that were made with neardns. libcni's cache has the list with which each pod will be stopped, whatever
// the network's file has by then. A missing folder has no pods. A file in it that is not libcni's own is ignored, as libcni does.
func madeWith(cache string) ([]string, error) {
	paths, _, err := attached.List(cache)
	if err != nil {
		return nil, fmt.Errorf("find pods that were made with neardns: %w", err)
	}
	var pods []string
	for _, path := range paths {
		p, err := attached.Read(path)
		if err != nil {
			continue // taken down meanwhile
		}
		if list, err := conflist.Read(p.Config); err != nil || !slices.Contains(list.Types, conflist.Type) {
			continue
		}
		pods = append(pods, p.String())
	}
	return pods, nil
}

// few shortens a list for one line.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
