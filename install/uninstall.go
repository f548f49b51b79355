package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
)

type uninstall struct {
	folders
	removeBinary bool
	cache        string // libcni's cache, which shows the pods that were started with neardns; "": do not look
}

// run removes the entry from every conflist in the folder (or only from un.file), used or not, because the runtime may use another one
// later. With --remove-binary, it then removes the plugin's binary, unless pods run that were started with neardns: CRI-O calls the
// plugin to stop such a pod.
func (un uninstall) run(ctx context.Context) error {
	if _, err := os.Stat(un.conf); errors.Is(err, os.ErrNotExist) {
		un.say("no folder %s: no network to remove neardns from", un.conf)
	} else if err := un.unchain(ctx); err != nil {
		return err
	}
	target := binaryPath(un.bin)
	_, err := os.Lstat(target)
	switch {
	case errors.Is(err, os.ErrNotExist):
		un.say("no %s", target)
		return nil
	case err != nil:
		return fmt.Errorf("stat plugin: %w", err)
	case !un.removeBinary:
		un.say("kept %s: pods that were made with it may need it to stop (--remove-binary removes it once no such pod is left)", target)
		return nil
	}
	if un.cache != "" {
		pods, err := madeWith(un.cache)
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			return fmt.Errorf("kept %s: %d pods were made with it and cannot stop without it: %s (run this again when they are gone; "+
				"--cni-cache \"\" removes it anyway)", target, len(pods), few(pods))
		}
	}
	if un.dryRun {
		un.say("would remove %s", target)
		return nil
	}
	if err := atomicfile.Remove(target); err != nil {
		return fmt.Errorf("remove plugin: %w", err)
	}
	un.say("removed %s", target)
	return nil
}

func (un uninstall) unchain(ctx context.Context) error {
	if !un.dryRun {
		bin := un.bin
		if _, err := os.Stat(bin); err != nil {
			bin = un.conf
		}
		unlock, err := lockAndSweep(ctx, bin, un.conf)
		if err != nil {
			return err
		}
		defer unlock()
	}
	names, err := networks(un.conf)
	if err != nil {
		return err
	}
	if un.file != "" {
		if !slices.Contains(names, un.file) {
			return fmt.Errorf("no network's file %s in %s", un.file, un.conf)
		}
		names = []string{un.file}
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, un.dropFrom(name))
	}
	return errors.Join(errs...)
}

func (un uninstall) dropFrom(name string) error {
	path := filepath.Join(un.conf, name)
	text, err := atomicfile.Read(path, maxList) // a pipe would block os.ReadFile
	if err != nil {
		return fmt.Errorf("read network: %w", err)
	}
	if !bytes.Contains(text, []byte(conflist.Type)) {
		un.say("%s does not name neardns", path)
		return nil
	}
	if filepath.Ext(name) != ".conflist" {
		return fmt.Errorf("%s names neardns but has a single plugin, which neardns-install never writes: remove the entry by hand", path)
	}
	c, wrote, err := un.write(func() (change, error) { return planDrop(un.conf, name) })
	switch {
	case err != nil:
		return err
	case !wrote:
		un.say("%s has no entry of neardns", path)
	case !un.dryRun:
		un.say("removed neardns from %s", c.from)
		if c.from != c.to {
			un.say("replaced %s by the single plugin's file from which it was made: %s", c.from, c.to)
		}
	}
	return nil
}
