package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// guestConfig is what the guest is told through its initramfs. Paths are the host's.
type guestConfig struct {
	Root     string   // the module
	Modules  string   // folder of the kernel's modules, by release
	Programs string   // folder of built programs
	Tests    string   // folder of built tests
	Backends string   // whose cells are run
	Timeout  string   // of each package, as go test's -timeout
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
	// Nobody writes the root folder, so what was read may be kept. The overlay lets tests write where they like; /upper is on
	// tmpfs, since an initramfs cannot hold an overlay's upper layer.
	if err := mountAll([]mount{
		{rootTag, "/lower", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,cache=loose,msize=262144"},
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
	// The module itself may lie in a folder that was just hidden.
	if err := os.MkdirAll("/root"+c.Root, 0o755); err != nil {
		return c, err
	}
	if err := mountAll([]mount{
		{"/lower" + c.Root, "/root" + c.Root, "", unix.MS_BIND, ""},
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
			"NEARDNS_PROGRAMS=" + c.Programs, "NEARDNS_COMPAT=stderr", "NEARDNS_SLOWNESS=4",
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

// runGuest runs the tests and sends their events.
func runGuest(_ []string) int {
	if err := runJobs(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

func runJobs() (err error) {
	var c guestConfig
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	host, err := openPort()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	for _, module := range nodeModules() {
		// One that is missing is missed by the test that needs it.
		if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "guest: load %s: %v: %s\n", module, err, out)
		}
	}
	answers := bufio.NewReader(host)
	for {
		j, err := askJob(host, answers)
		if err != nil {
			return err
		}
		if j == nil {
			_, err = fmt.Fprintf(host, "{\"Action\":%q}\n", endOfTests)
			return err
		}
		if err := runJob(c, *j, host); err != nil {
			return err
		}
	}
}

// askJob asks the host for the next job; nil says that there is none.
func askJob(host io.Writer, answers *bufio.Reader) (*job, error) {
	if _, err := fmt.Fprintf(host, "{\"Action\":%q}\n", nextJob); err != nil {
		return nil, fmt.Errorf("ask for a job: %w", err)
	}
	var line []byte
	for deadline := time.Now().Add(10 * time.Second); ; {
		part, err := answers.ReadBytes('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		// The port is at its end, too, while the driver has not heard that the host holds it open.
		if !errors.Is(err, io.EOF) || time.Now().After(deadline) {
			return nil, fmt.Errorf("hear of a job: %w", err)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(10 * time.Millisecond)}, nil) //nolint:errcheck // a short wait is as good
	}
	var j *job
	if err := json.Unmarshal(line, &j); err != nil {
		return nil, fmt.Errorf("read a job: %w", err)
	}
	return j, nil
}

// nodeModules are those that a node has before the first pod is made: by itself, by kube-proxy, by its firewall. All else
// comes when it is asked for. An ADD has five seconds, which the loading of these would take under emulation.
func nodeModules() []string {
	return []string{
		"br_netfilter", "veth", "dummy", "ip_vs", "ip_vs_rr", "nf_conntrack_netlink", "nf_tables", "nft_compat", "nft_ct", "nft_socket", "nft_fib_inet", "nft_masq",
		"nft_nat", "nft_chain_nat", "nft_numgen", "iptable_filter", "iptable_nat", "iptable_raw", "iptable_mangle", "ip6table_filter", "ip6table_nat",
		"ip6table_raw", "ip6table_mangle", "xt_recent", "xt_socket", "xt_connmark", "ipt_rpfilter", "ip6t_rpfilter",
		"xt_CT", "xt_set", "xt_comment", "xt_addrtype", "xt_statistic",
	}
}

// runJob runs a package's tests. Failed tests are no error: their events tell. Where few failed, they are run once more, each
// by itself: under emulation a machine is now and then late. The reader of the events names what failed at first.
func runJob(c guestConfig, j job, events io.Writer) error {
	failed, err := runTests(c, j, events)
	if err != nil || len(failed) > mostAgain {
		return err
	}
	for _, name := range failed {
		again := job{Package: j.Package, Run: exactly(name)}
		if _, err := runTests(c, again, events); err != nil {
			return err
		}
	}
	return nil
}

// runTests runs tests and returns those that failed and have none below them that did.
func runTests(c guestConfig, j job, events io.Writer) ([]string, error) {
	args := []string{"-t", "-p", module + "/" + j.Package, filepath.Join(c.Tests, j.binary()),
		"-test.v=test2json", "-test.timeout=" + c.Timeout, "-test.count=1", "-test.parallel=1", "-test.run=" + j.Run}
	cmd := exec.Command(filepath.Join(c.Programs, "test2json"), args...)
	f := failures{to: events}
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(c.Root, j.Package), &f, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return f.leaves(), err
}

// openPort finds the port that carries jobs and events; there is no udev that would name its file.
func openPort() (*os.File, error) {
	const sys = "/sys/class/virtio-ports"
	deadline := time.Now().Add(10 * time.Second)
	for {
		ports, err := os.ReadDir(sys)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			name, err := os.ReadFile(filepath.Join(sys, p.Name(), "name"))
			if err == nil && strings.TrimSpace(string(name)) == eventsPort {
				return os.OpenFile(filepath.Join("/dev", p.Name()), os.O_RDWR, 0)
			}
		}
		// The driver asks qemu for the name after it was loaded.
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no port %s in %s", eventsPort, sys)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(10 * time.Millisecond)}, nil) //nolint:errcheck // a short wait is as good
	}
}
