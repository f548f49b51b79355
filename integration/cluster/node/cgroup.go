package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupName is the control group, in every hierarchy, that all pods are in.
const cgroupName = "/neardns-cluster"

// hierarchies are the mount points of the machine's control groups: several of version 1, or one of version 2.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			all = append(all, f[1])
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no control groups are mounted below /sys/fs/cgroup")
	}
	return all, nil
}

// makeCgroup makes a host's in every hierarchy, as the kubelet's cgroupRoot has to be.
func (h host) makeCgroup() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, top := range all {
		dir := top + h.cgroup()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // of version 1: empty at first, and then nothing can run there
			value, err := os.ReadFile(filepath.Join(top, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return fmt.Errorf("fill control group: %w", err)
			}
		}
		// All pods together would weigh as much as one process of the machine's. They are a whole node's.
		for file, weight := range map[string]string{"cpu.shares": "16384", "cpu.weight": "1600"} {
			err := os.WriteFile(filepath.Join(dir, file), []byte(weight), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("weigh control group: %w", err)
			}
		}
	}
	return nil
}

// removeCgroup takes it away with all below it, once what ran there has ended.
func removeCgroup() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, top := range all {
		for deadline := time.Now().Add(20 * time.Second); ; {
			err := removeGroups(top + cgroupName)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("remove control group: %w", err)
			}
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the kernel sends no event when a group's last process is gone
		}
	}
	return nil
}

func removeGroups(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
	return nil
}
