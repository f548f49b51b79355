package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// makeMounts gives a node its own folders, in the calling process's own mount namespace. bin is the repository's.
func (h host) makeMounts(bin string) error {
	// Nothing of this may get back to the machine. Shared among the node's own again in the end: the kubelet and the runtime
	// rely on it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// First: the repository may lie in a folder that is covered below.
	if err := bind(bin, path("bin")); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	own := ownFolders()
	for _, at := range slices.Sorted(maps.Keys(own)) {
		if err := os.MkdirAll(h.path(own[at]), 0o755); err != nil {
			return err
		}
		if err := bind(h.path(own[at]), at); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// Where programs pin what they give the kernel (bpf(2)): what the machine has pinned is not the node's.
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=700"); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	for name := range kernelSettings() {
		err := bind(path("kernel", filepath.Base(name)), "/proc/sys/"+name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return nil
}

func bind(from, at string) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, at, err)
	}
	return nil
}
