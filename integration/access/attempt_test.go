package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// attempt is the task of a process of its own: whose place to take, over which files.
type attempt struct {
	Container confined
	Node      string // the folder that stands for the host's root
	Pod       string // the folder of what is the pod's own, by volume
	Root      string // an empty folder, the container's root
}

// reach is what came of it, by the host's paths.
type reach struct{ Reads, Writes []string }

// bits are those of linux/capability.h.
var bits = map[corev1.Capability]uint{"CHOWN": 0, "DAC_OVERRIDE": 1, "NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13,
	"SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39}

// try makes the attempt. Its process has a mount namespace of its own.
func try(in io.Reader, out io.Writer) error {
	var a attempt
	if err := json.NewDecoder(in).Decode(&a); err != nil {
		return err
	}
	runtime.LockOSThread() // capabilities are a thread's
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep the mounts to this process: %w", err)
	}
	// As a runtime does: the outer mounts first, and a read-only root.
	mounts := slices.SortedFunc(slices.Values(a.Container.Mounts), func(x, y mount) int { return strings.Compare(x.MountPath, y.MountPath) })
	if err := unix.Mount("tmpfs", a.Root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := a.bind(m); err != nil {
			return fmt.Errorf("mount %s: %w", m.MountPath, err)
		}
	}
	if err := unix.Mount("", a.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "mode=755"); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(a.Root), unix.Chdir("/")); err != nil {
		return err
	}
	if err := a.Container.become(); err != nil {
		return fmt.Errorf("take its rights: %w", err)
	}
	return json.NewEncoder(out).Encode(a.walk(mounts))
}

func (a attempt) bind(m mount) error {
	from := filepath.Join(a.Pod, m.Name)
	if m.Host != "" {
		from = filepath.Join(a.Node, m.Host)
	}
	to := filepath.Join(a.Root, m.MountPath)
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else {
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, nil, 0o644))
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil || !m.ReadOnly {
		return err
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// become gives this thread the container's user and capabilities.
func (c confined) become() error {
	for capability := range unix.CAP_LAST_CAP + 1 {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	if err := unix.Setgroups(nil); err != nil {
		return err
	}
	if c.User != 0 {
		if err := errors.Join(unix.Setresgid(c.User, c.User, c.User), unix.Setresuid(c.User, c.User, c.User)); err != nil {
			return err
		}
	}
	var set [2]unix.CapUserData
	for _, name := range c.Capabilities {
		bit, ok := bits[name]
		if !ok {
			return fmt.Errorf("capability %s: its number is not known here", name)
		}
		set[0].Effective |= 1 << bit
		set[0].Permitted |= 1 << bit
	}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &set[0])
}

// walk opens everything that is there.
func (a attempt) walk(mounts []mount) reach {
	var r reach
	onHost := func(path string) string {
		best := mount{}
		for _, m := range mounts {
			if (path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")) && len(m.MountPath) > len(best.MountPath) {
				best = m
			}
		}
		if best.Host == "" {
			return ""
		}
		return best.Host + strings.TrimPrefix(path, best.MountPath)
	}
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error { // what cannot be entered is not reached
		host := onHost(path)
		if err != nil || host == "" {
			return nil //nolint:nilerr // the walk goes on
		}
		if d.IsDir() {
			if f, err := os.CreateTemp(path, ".try-*"); err == nil {
				r.Writes = append(r.Writes, host)
				_ = errors.Join(f.Close(), os.Remove(f.Name()))
			}
			return nil
		}
		if f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			r.Reads = append(r.Reads, host)
			_ = f.Close()
		}
		if f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			r.Writes = append(r.Writes, host)
			_ = f.Close()
		}
		return nil
	})
	slices.Sort(r.Reads)
	slices.Sort(r.Writes)
	r.Reads, r.Writes = slices.Compact(r.Reads), slices.Compact(r.Writes)
	return r
}
