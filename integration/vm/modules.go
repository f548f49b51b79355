package main

import (
	"fmt"
	"path"
	"strings"
)

// bootModules are what the guest needs before it has its root folder, and with it modprobe.
func bootModules() []string {
	return []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
}

// moduleOrder lists the files of the modules named and of those that they need, each after what it needs, from the text of
// modules.dep. A module that is built into the kernel (modules.builtin) needs no file.
func moduleOrder(dep, builtin string, names []string) ([]string, error) {
	needs, files := map[string][]string{}, map[string]string{}
	for line := range strings.Lines(dep) {
		file, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[file] = strings.Fields(rest)
		files[moduleName(file)] = file
	}
	in := map[string]bool{}
	for line := range strings.Lines(builtin) {
		in[moduleName(strings.TrimSpace(line))] = true
	}
	var order []string
	seen := map[string]bool{}
	var add func(file string) error
	add = func(file string) error {
		if seen[file] {
			return nil
		}
		seen[file] = true
		for _, need := range needs[file] {
			if err := add(need); err != nil {
				return err
			}
		}
		order = append(order, file)
		return nil
	}
	for _, name := range names {
		file, ok := files[name]
		switch {
		case ok:
			if err := add(file); err != nil {
				return nil, err
			}
		case !in[name]:
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
	}
	return order, nil
}

// moduleName is a module's name by its file's: kernel/net/9p/9pnet.ko.xz is 9pnet.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return name
}
