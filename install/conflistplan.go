package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/conflist"
)

func (c change) none() bool { return c.from == c.to && bytes.Equal(c.before, c.after) }

// networks returns the names of the files in folder that a container runtime loads as network configurations, in the order in which it
// reads them.
func networks(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder) // sorted by name, as runtimes sort
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no folder %s for network configurations: name the runtime's own with --cni-conf", folder)
	}
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// planAppend plans to append entry to the plugin list of file or, if file is "", of the network configuration that the runtime uses. If
// that one does not parse, planAppend returns an error and does not try the next file: containerd then has no network, and uses no later
// file for pods.
func planAppend(folder, file string, entry []byte) (change, error) {
	names, err := networks(folder)
	if err != nil {
		return change{}, err
	}
	name := file
	switch {
	case name != "" && !slices.Contains(names, name):
		return change{}, fmt.Errorf("no network's file %s in %s", name, folder)
	case name == "" && len(names) == 0:
		return change{}, fmt.Errorf("no network is configured in %s yet, and neardns makes none: install the cluster's network first, or "+
			"use --wait", folder)
	case name == "":
		name = names[0]
	}
	c, err := open(folder, name)
	if err != nil {
		return c, err
	}
	list := c.before
	if filepath.Ext(name) != ".conflist" {
		if list, err = c.convert(folder, file == "", names); err != nil {
			return c, err
		}
	}
	if c.Network, err = conflist.Read(list); err != nil {
		return c, fmt.Errorf("%s: %w: a runtime may not load it: have the network's own installer write it again, or use --wait; it is unchanged",
			c.from, err)
	}
	if first := c.Types[0]; file == "" && (first == "multus" || first == "multus-shim") {
		return c, fmt.Errorf("%s belongs to Multus, which writes it from the cluster's network: name that network's file with --file", c.from)
	}
	if c.after, err = conflist.Append(list, entry); err != nil {
		return c, fmt.Errorf("%s: %w", c.from, err)
	}
	if c.Network, err = conflist.Read(c.after); err != nil {
		return c, fmt.Errorf("%s: %w", c.from, err)
	}
	return c, nil
}

// planDrop plans a network's list without neardns's entry. If an earlier run made the list from a file with a single plugin (.conf or
// .json), planDrop plans a .conf with that file's bytes in its place.
func planDrop(folder, name string) (change, error) {
	c, err := open(folder, name)
	if err != nil {
		return c, err
	}
	if c.after, err = conflist.Drop(c.before); err != nil {
		return c, fmt.Errorf("%s: %w", c.from, err)
	}
	if conf, made := conflist.ToPlugin(c.after); made && !c.none() {
		c.after, c.to = conf, strings.TrimSuffix(c.from, ".conflist")+".conf"
	}
	return c, nil
}
