package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
)

// change is the planned change of one network's configuration. Making one writes nothing.
type change struct {
	from   string // the file that the runtime uses now
	to     string // the file that will have the list: from itself, or the .conflist next to a .conf
	before []byte // from's text
	after  []byte // to's text
	info   os.FileInfo
	conflist.Network
}

// maxList bounds a network's file, in bytes. The file is parsed about ten times, and 20 MB would cost 14 s of CPU.
const maxList = 1 << 20

// open reads a network's file. A symbolic link is followed within the folder only: its target elsewhere belongs to another program, and a
// file in place of the link would cut the network off from its source.
func open(folder, name string) (change, error) {
	path := filepath.Join(folder, name)
	info, err := os.Lstat(path)
	if err != nil {
		return change{}, fmt.Errorf("stat network: %w", err)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			return change{}, fmt.Errorf("follow %s: %w", path, err)
		}
		here, err := filepath.EvalSymlinks(folder)
		if err != nil {
			return change{}, fmt.Errorf("follow %s: %w", folder, err)
		}
		if filepath.Dir(target) != here || filepath.Ext(target) != filepath.Ext(path) {
			return change{}, fmt.Errorf("%s is a link to %s: add neardns to that list, or replace the link by a file",
				path, target)
		}
		path = target
		if info, err = os.Lstat(path); err != nil {
			return change{}, fmt.Errorf("stat network: %w", err)
		}
	}
	if !info.Mode().IsRegular() {
		return change{}, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > maxList {
		return change{}, fmt.Errorf("%s has %d bytes, more than the limit of %d: is it a network's list?", path, info.Size(), maxList)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return change{}, fmt.Errorf("read network: %w", err)
	}
	return change{from: path, to: path, before: text, after: text, info: info}, nil
}

// convert turns a single plugin's configuration into a list under another name. Both files exist for a moment. The old one sorts first, so
// the runtime uses it until it is removed.
func (c *change) convert(folder string, first bool, names []string) ([]byte, error) {
	list, err := conflist.FromPlugin(c.before)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.from, err)
	}
	old := filepath.Base(c.from)
	name := strings.TrimSuffix(old, filepath.Ext(old)) + ".conflist"
	c.to = filepath.Join(folder, name)
	after := append(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == old }), name)
	if first && slices.Min(after) != name {
		return nil, fmt.Errorf("%s has to become %s to have more than one plugin, but the runtime would then take %s: rename one of them",
			c.from, name, slices.Min(after))
	}
	if slices.Contains(names, name) {
		if err := c.ownLeftover(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ownLeftover returns nil if the existing list is one that an earlier run made from this same network. That run was cut off before it
// removed the old file, or the network's own installer has restored its file since.
func (c *change) ownLeftover() error {
	both := fmt.Errorf("%s and %s both exist and are not the same network: remove the one that is out of date", c.from, c.to)
	// open refuses anything but a regular file: reading a pipe would block.
	there, err := open(filepath.Split(c.to))
	if err != nil {
		return err
	}
	have, err := conflist.Read(there.before)
	if err != nil {
		return errors.Join(both, err)
	}
	list, err := conflist.FromPlugin(c.before)
	if err != nil {
		return errors.Join(both, err)
	}
	want, err := conflist.Read(list)
	if err != nil {
		return errors.Join(both, err)
	}
	have.Types = slices.DeleteFunc(have.Types, func(t string) bool { return t == conflist.Type })
	if have.Name != want.Name || !slices.Equal(have.Types, want.Types) {
		return both
	}
	return nil
}

// apply writes the change and keeps mode and owner. If it returns atomicfile.ErrMoved, the files are as their owner wrote them.
func (c change) apply() (err error) {
	if c.from == c.to {
		o := atomicfile.Options{Mode: c.info.Mode().Perm(), Owner: c.info}
		if err := exchanger().Write(c.to, c.before, c.after, o); err != nil {
			return fmt.Errorf("put network in place: %w", withRemedy(err))
		}
		return nil
	}
	temp, err := writeTemp(filepath.Dir(c.to), c.after, c.info.Mode().Perm(), c.info)
	if err != nil {
		return fmt.Errorf("write network: %w", err)
	}
	now, err := os.ReadFile(c.from)
	if err != nil || !bytes.Equal(now, c.before) {
		return errors.Join(atomicfile.ErrMoved, os.Remove(temp))
	}
	if filepath.Ext(c.to) == ".conf" {
		err = putBack(temp, c.to)
	} else {
		err = rename(temp, c.to)
	}
	if err != nil {
		return fmt.Errorf("put network in place: %w", errors.Join(err, os.Remove(temp)))
	}
	if err := exchanger().Remove(c.from, c.before); err != nil {
		return fmt.Errorf("remove %s, which %s replaces: %w", c.from, c.to, err)
	}
	return nil
}
