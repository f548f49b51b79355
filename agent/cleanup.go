package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/neardns/neardns/agent/internal/link"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// runCleanup takes everything away, in the order in which nothing ever leads into nothing: pod tables, then the switch,
// then the link and the files. Where a pod cannot be entered, the switch stays, since that pod still sends to it.
func runCleanup(ctx context.Context, e env, args []string) error {
	fs := flags(e, "cleanup")
	path := configFlag(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	conf, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	release, err := hold(conf.StateDir)
	if err != nil {
		return err
	}
	defer release()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(e.stdout, format+"\n", args...) }

	// Nothing is steered from here on, whatever the conflist still says.
	if err := podfile.RemoveProof(conf.PersistDir); err != nil {
		return err
	}
	if err := errors.Join(pods.Open(conf.StateDir, discardLog()).RemoveTables(ctx)...); err != nil {
		return fmt.Errorf("%w: the switch stays for them; end these pods and run cleanup again", err)
	}
	say("pod tables removed")
	rules, err := steer.OpenNftables(-1)
	if err != nil {
		return err
	}
	defer rules.Close() //nolint:errcheck // at exit
	if err := rules.Remove(); err != nil {
		return err
	}
	say("host table removed")
	if err := link.Remove(link.Config{Name: conf.Link.Name}); err != nil {
		return err
	}
	say("link %s removed", conf.Link.Name)
	return errors.Join(
		os.RemoveAll(filepath.Dir(podfile.Path(conf.StateDir, "x", "x"))),
		removeFile(filepath.Join(conf.StateDir, socketName)),
		removeFile(filepath.Join(conf.StateDir, lockName)),
	)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
