package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/conflist"
)

// madeWith names the pods that were made with our plugin and are not taken down yet, as runtimes keep them: libcni's folder of
// results has, for each, the list that it will be taken down by, whatever stands in the network's file by then. A folder that is
// not there holds none; a file in it that is not libcni's own is passed over, as libcni does.
func madeWith(cache string) ([]string, error) {
	folder := filepath.Join(cache, "results")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for pods that were made with neardns: %w", err)
	}
	var pods []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			continue // taken down meanwhile
		}
		var kept struct {
			Config  []byte // base64 in the file
			CNIArgs [][2]string
		}
		if json.Unmarshal(text, &kept) != nil {
			continue
		}
		if list, err := conflist.Read(kept.Config); err != nil || !slices.Contains(list.Types, conflist.Type) {
			continue
		}
		pods = append(pods, podOf(kept.CNIArgs, e.Name()))
	}
	return pods, nil
}

// podOf is a pod's name as people know it, or else the file's.
func podOf(args [][2]string, file string) string {
	var name []string
	for _, key := range []string{"K8S_POD_NAMESPACE", "K8S_POD_NAME"} {
		for _, a := range args {
			if a[0] == key {
				name = append(name, a[1])
			}
		}
	}
	if len(name) < 2 {
		return file
	}
	return strings.Join(name, "/")
}

// few shortens a list for one line.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
