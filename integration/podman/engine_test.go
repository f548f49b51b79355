//go:build images

package podman

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// The images, as integration/tools/images names them.
const (
	pluginImage = "docker.io/neardns/neardns-plugin:test"
	agentImage  = "docker.io/neardns/neardns-agent:test"
	slimImage   = "docker.io/neardns/neardns-agent:test-slim"
)

// engine is podman's command line, with a store that is this run's own: no other's images or containers are touched.
var engine []string

// cgroupParent is the cgroup that the containers' own are made in.
const cgroupParent = "/neardns-images"

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "neardns-images")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, removeStore(dir)) }()
	// vfs needs nothing of the kernel; runc takes hybrid cgroups, which crun does not.
	engine = []string{"podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"}
	build := exec.Command("../tools/images")
	build.Env = append(os.Environ(), "ENGINE="+strings.Join(engine, " "), "TAG=test")
	out, err := build.CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("build the images: %w\n%s", err, out)
	}
	// In the form of a test's log, which is what make shows.
	for line := range strings.Lines(string(out)) {
		fmt.Printf("    engine_test.go: %s", line)
	}
	return m.Run(), nil
}

func removeStore(dir string) error {
	out, err := podman("rm", "--all", "--force", "--time", "0")
	if err != nil {
		return fmt.Errorf("remove the containers: %w\n%s", err, out)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*" + cgroupParent, "/sys/fs/cgroup" + cgroupParent} {
		groups, _ := filepath.Glob(pattern)
		for _, g := range groups {
			_ = os.Remove(filepath.Join(g, "conmon")) // empty by now, as is its parent
			_ = os.Remove(g)
		}
	}
	_ = unix.Unmount(filepath.Join(dir, "root/vfs"), unix.MNT_DETACH)
	return os.RemoveAll(dir)
}

func podman(args ...string) (string, error) {
	out, err := exec.Command(engine[0], slices.Concat(engine[1:], args)...).CombinedOutput()
	return string(out), err
}

// container is what a container is run with; all else is as the manifest has it: the host's network, a root that cannot be
// written, the engine's own seccomp profile, and no capability but those named.
type container struct {
	image   string
	name    string
	add     []string // capabilities
	mounts  []string // host path:container path[:ro]
	flags   []string
	command []string
}

func (c container) args(t *testing.T) []string {
	t.Helper()
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	args := slices.Concat(engine, []string{"run", "--rm", "--pull", "never", "--network", "host", "--read-only", "--read-only-tmpfs=false",
		"--cgroup-parent", cgroupParent, "--log-driver", "none", "--ulimit", fmt.Sprintf("nofile=%d:%d", limit.Cur, limit.Cur), "--ulimit", "nproc=4096:4096", "--cap-drop", "ALL"})
	for _, name := range c.add {
		args = append(args, "--cap-add", name)
	}
	for _, m := range c.mounts {
		args = append(args, "--volume", m)
	}
	if c.name != "" {
		args = append(args, "--name", c.name)
	}
	return slices.Concat(args, c.flags, []string{c.image}, c.command)
}

// run runs a container in a netns to its end.
func (c container) run(t *testing.T, ns *testutil.NetNS) (code int, out string) {
	t.Helper()
	args := c.args(t)
	cmd := exec.Command(args[0], args[1:]...)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	var err error
	ns.Do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), buf.String()
}

// start starts a container in a netns, by its name. Cleanup ends it.
func (c container) start(t *testing.T, ns *testutil.NetNS) *testutil.Process {
	t.Helper()
	args := c.args(t)
	t.Cleanup(func() { c.end(t) })
	return ns.StartCmd(exec.Command(args[0], args[1:]...))
}

// end kills the container and removes it.
func (c container) end(t *testing.T) {
	t.Helper()
	if out, err := podman("rm", "--force", "--time", "0", "--ignore", c.name); err != nil {
		t.Errorf("remove container %s: %v\n%s", c.name, err, out)
	}
}

// exec runs a command in the running container, as a probe of the kubelet does.
func (c container) exec(command ...string) (string, error) {
	return podman(slices.Concat([]string{"exec", c.name}, command)...)
}

// without is all but one.
func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}
