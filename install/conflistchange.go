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

// change is a planned edit of one network configuration. Planning writes nothing; apply does.
type change struct {
	from   string // the file to change, with symbolic links followed
	to     string // the file to write: from itself, a new .conflist in place of a .conf or .json, or a .conf in place of a .conflist
	before []byte // the content of from
	after  []byte // the wanted content of to
	info   os.FileInfo
	conflist.Network
}

// maxList is the largest network configuration that is read, in bytes. A pass parses the file about ten times, so a file of 20 MB would
// cost 14 s of CPU.
const maxList = 1 << 20

// open reads a network configuration. It follows a symbolic link only to a file in the same folder with the same extension. A target
// elsewhere belongs to another program, and replacing the link by a file would detach it from that program's updates.
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

// convert turns a configuration with a single plugin (.conf or .json) into a list (.conflist), without writing it. apply writes the list
// before it removes the old file; until then the runtime uses the one that sorts first. Both describe the same network.
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
		if err := c.ownLeftover(list); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ownLeftover returns nil if the .conflist that exists next to the .conf or .json has the same network name and plugin types (except
// neardns) as list, as one that an earlier run made from it. Both exist if that run was cut off, or if the network's own installer has
// restored its file.
func (c *change) ownLeftover(list []byte) error {
	both := fmt.Errorf("%s and %s both exist and are not the same network: remove the one that is out of date", c.from, c.to)
	// open refuses a pipe, which would block the read.
	there, err := open(filepath.Split(c.to))
	if err != nil {
		return err
	}
	have, err := conflist.Read(there.before)
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

// apply writes the change with the mode and owner of the old file. It returns atomicfile.ErrMoved if another program changed the file
// since it was read; that file then stays, but if c.to is another file, it may exist already. The caller then plans again.
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
