package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// makeRoot makes what a guest of another architecture has as root folder, where it is not there yet: the programs that tests call, out of
// Debian's packages. None of the packages is set up, since that would run programs of the other architecture here.
func makeRoot(ctx context.Context, dir, arch string) (err error) {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	work := dir + ".new"
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(filepath.Dir(dir), 0o755)); err != nil {
		return err
	}
	packages := []string{
		"bash", "dash", "coreutils", "util-linux", "mount", "procps", "kmod", "netbase", "iproute2", "nftables", "iptables", "conntrack", "ipset", "ipvsadm", "bind9-dnsutils",
	}
	if _, err := output(ctx, filepath.Dir(dir), "mmdebstrap", "--architectures="+arch, "--variant=extract", "--format=directory",
		"--aptopt=Apt::Install-Recommends \"false\"", "--dpkgopt=path-exclude=/usr/share/*", "--include="+strings.Join(packages, ","), "bookworm", work); err != nil {
		return err
	}
	// As the package iptables has them when it is set up, by alternatives.
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			link := filepath.Join(work, "usr/sbin", name+suffix)
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := os.Symlink(name+"-nft"+suffix, link); err != nil {
				return fmt.Errorf("choose iptables' programs: %w", err)
			}
		}
	}
	return os.Rename(work, dir)
}
