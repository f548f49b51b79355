package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// placed renames temp, which is complete and holds content, to what says that it is to change places with list.
func placed(temp, list string, content []byte) (name string, err error) {
	name = filepath.Join(filepath.Dir(list), placedName(list, content))
	return name, os.Rename(temp, name)
}

// placedName needs nothing random: one installer works on a folder at a time.
func placedName(list string, content []byte) string {
	return placedPrefix + digest(content) + "-" + filepath.Base(list) + tempSuffix
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// sweep removes what an installer that was killed left in folder, and first gives back what it had taken out of its place: a
// network's owner may have written it while it was being looked at. It may run only under the lock, where no temporary file
// belongs to anyone alive.
func sweep(folder string) error {
	stale, err := filepath.Glob(filepath.Join(folder, tempPrefix+"*"+tempSuffix))
	if err != nil {
		return err
	}
	for _, file := range stale {
		if err := giveBack(file); err != nil {
			return fmt.Errorf("give back what an earlier run took out of its place: %w", err)
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove what an earlier run left: %w", err)
		}
	}
	return nil
}

// giveBack puts a text that was taken out of its place back there, unless its owner has written another one since.
func giveBack(file string) error {
	folder, name := filepath.Split(file)
	name = strings.TrimSuffix(name, tempSuffix)
	if rest, ok := strings.CutPrefix(name, asidePrefix); ok {
		err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, filepath.Join(folder, rest), unix.RENAME_NOREPLACE)
		if err == nil || errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	}
	rest, ok := strings.CutPrefix(name, placedPrefix)
	placed, list, named := strings.Cut(rest, "-")
	if !ok || !named {
		return nil
	}
	list = filepath.Join(folder, list)
	out, in, err := readBoth(file, list)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its owner has taken the network away
	}
	if err != nil {
		return err
	}
	switch {
	case digest(out) == placed: // it never came into its place, or came out of it again
		return nil
	case digest(in) == placed, newer(file, list):
		// What stands there is the installer's, or an owner's text from before this one. This run makes its change anew.
		return errors.Join(exchange(file, list), atomicfile.SyncFolder(folder))
	}
	return nil
}

// newer tells whether a was written after b.
func newer(a, b string) bool {
	x, errA := os.Lstat(a)
	y, errB := os.Lstat(b)
	return errA == nil && errB == nil && x.ModTime().After(y.ModTime())
}
