package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
)

// guestConfig is what the guest gets through its initramfs. Paths are the host's.
type guestConfig struct {
	Root     string   // the module
	Modules  string   // folder of the kernel's modules, by release
	Programs string   // folder of built programs
	Tests    string   // folder of built tests
	Backends string   // whose cells are run
	Commit   string   // that the tests are of
	Timeout  string   // of each package, as go test's -timeout
	Slowness int      // of the guest, by which tests wait longer
	Load     []string // modules in the initramfs, in their order
}

const guestCommand = "run-tests"

// initGuest is process 1. It lays the file systems, has a child run the tests, reaps what loses its parent meanwhile, and
// turns the machine off.
func initGuest() {
	c, err := prepareGuest()
	if err == nil {
		err = reapUntil(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	// With -no-reboot, this ends qemu.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func prepareGuest() (guestConfig, error) {
	var c guestConfig
	early := []mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sys", "/sys", "sysfs", 0, ""},
		{"dev", "/dev", "devtmpfs", 0, ""},
	}
	if err := mountAll(early); err != nil {
		return c, err
	}
	text, err := os.ReadFile(configPath)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, err
	}
	for _, module := range c.Load {
		if err := loadModule(module); err != nil {
			return c, fmt.Errorf("load %s: %w", module, err)
		}
	}
	// No program writes the root folder, so what was read may be kept. The overlay lets tests write where they like; /upper is on
	// tmpfs, since an initramfs cannot hold an overlay's upper layer.
	if err := mountAll([]mount{
		{rootTag, "/lower", "9p", unix.MS_RDONLY, shareOptions},
		{"upper", "/upper", "tmpfs", 0, ""},
	}); err != nil {
		return c, err
	}
	for _, dir := range []string{"/upper/upper", "/upper/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return c, err
		}
	}
	if err := mountAll([]mount{
		{"root", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work"},
		{"/proc", "/root/proc", "", unix.MS_MOVE, ""},
		{"/sys", "/root/sys", "", unix.MS_MOVE, ""},
		{"/dev", "/root/dev", "", unix.MS_MOVE, ""},
		{"run", "/root/run", "tmpfs", 0, "mode=755"},
		{"tmp", "/root/tmp", "tmpfs", 0, "mode=1777"},
		{"lib", "/root/var/lib", "tmpfs", 0, "mode=755"},
	}); err != nil {
		return c, err
	}
	// The module is shared by itself: it may lie in a folder that was just hidden, and another architecture's root has none.
	if err := os.MkdirAll("/root"+c.Root, 0o755); err != nil {
		return c, err
	}
	if err := mountAll([]mount{
		{moduleTag, "/root" + c.Root, "9p", unix.MS_RDONLY, shareOptions},
		{"/root", "/", "", unix.MS_MOVE, ""},
	}); err != nil {
		return c, err
	}
	if err := errors.Join(unix.Chroot("."), unix.Chdir("/")); err != nil {
		return c, err
	}
	// The memory that these hold is the guest's.
	for _, dir := range []string{"/dev/pts", "/dev/shm", "/lib/modules", "/sys/fs/cgroup"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return c, err
		}
	}
	if err := mountAll([]mount{
		{"pts", "/dev/pts", "devpts", 0, ""},
		{"shm", "/dev/shm", "tmpfs", 0, ""},
		{"cgroup", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{c.Modules, "/lib/modules", "", unix.MS_BIND, ""},
	}); err != nil {
		return c, err
	}
	return c, unix.Sethostname([]byte("vm"))
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		// The initramfs is left by moving the new root over it, and that works from inside it.
		if m.target == "/" {
			if err := unix.Chdir(m.source); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// shareOptions are those of a folder of the host's that no program writes.
const shareOptions = "trans=virtio,version=9p2000.L,cache=loose,msize=262144"

// compressedFile has the kernel decompress a module: from trixie on they are (Linux 5.17).
const compressedFile = 4

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = compressedFile
	}
	return unix.FinitModule(int(f.Fd()), "", flags)
}

// reapUntil runs the tests in a child and waits for children, its own and orphans, until that one has ended.
func reapUntil(c guestConfig) error {
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	child, err := os.StartProcess("/proc/self/exe", []string{"vm", guestCommand}, &os.ProcAttr{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "NEARDNS_REQUIRE_ROOT=1",
			"NEARDNS_PROGRAMS=" + c.Programs, compat.Env + "=stderr", compat.EnvCommit + "=" + c.Commit,
			"NEARDNS_SLOWNESS=" + strconv.Itoa(c.Slowness),
			"NEARDNS_PROXIES=iptables,nftables,ipvs", "NEARDNS_BACKENDS=" + c.Backends},
		Files: []*os.File{r, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(config)
	if err := errors.Join(err, w.Close(), r.Close()); err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
		if pid == child.Pid {
			return nil
		}
	}
}
