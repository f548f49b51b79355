package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/neardns/neardns/pkg/testutil"
)

// containerd is one release of it. Its binaries are in dir, or on the PATH where dir is empty.
type containerd struct {
	name string
	row  string // in README.md's table
	dir  string
	// cni is the newest version of network lists that it speaks. From 1.1 on there is STATUS, and there are drop-in folders.
	cni string
}

// releases are the two that the matrix runs: Debian's, and the one that bin/tools/containerd2 holds.
func releases() []containerd {
	return []containerd{
		{name: "containerd-1", row: "Debian's containerd", cni: "1.0.0"},
		{name: "containerd-2", row: "containerd", dir: filepath.Join(root(), "bin/tools/containerd2"), cni: "1.1.0"},
	}
}

func (c containerd) bin(name string) string {
	if c.dir == "" {
		return name
	}
	return filepath.Join(c.dir, name)
}

// version is what it says of itself; an error means that it is not here.
func (c containerd) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, c.bin("containerd"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: make test-runtimes installs it", c.name, err)
	}
	f := strings.Fields(string(out))
	if len(f) < 3 {
		return "", fmt.Errorf("%s: unreadable version %q", c.name, out)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(f[2], "v"), "+") // built from a module, it knows no commit
	return version, nil
}

// Configurations: own folders and socket, snapshots that need no filesystem of their own, and no OOM score below this
// process's own, which a container may not have either.
const (
	config1 = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "%[1]s/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[2]s"
    conf_dir = "%[3]s"
`
	config2 = `version = 3
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/c.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + podImage + `"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "%[1]s/runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["%[2]s"]
    conf_dir = "%[3]s"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "%[1]s/nri.sock"
  plugin_path = "%[1]s/nri/plugins"
  plugin_config_path = "%[1]s/nri/conf.d"
`
)

// running is a started containerd.
type running struct {
	containerd
	*cri
	host    *testutil.NetNS
	dir     string
	process *testutil.Process
}

// start configures and starts it in the host's netns, with the pods' image in its store.
func (c containerd) start(t *testing.T, host *testutil.NetNS, dir, cniBin, cniConf string) *running {
	t.Helper()
	text := config1
	if c.dir != "" {
		text = config2
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), fmt.Appendf(nil, text, dir, cniBin, cniConf), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &running{containerd: c, host: host, dir: dir}
	r.cri = dialCRI(t, r.socket(), "neardns-test-"+c.name)
	r.launch()
	load := []string{"--address", r.socket(), "--namespace", "k8s.io", "images", "import", "--snapshotter", "native"}
	if c.dir != "" {
		load = append(load, "--local") // the transfer service unpacks only what its configuration lists
	}
	if out, err := exec.CommandContext(t.Context(), c.bin("ctr"), append(load, buildImage(t, dir))...).CombinedOutput(); err != nil {
		t.Fatalf("import the pods' image: %v\n%s", err, out)
	}
	return r
}

func (r *running) socket() string { return filepath.Join(r.dir, "c.sock") }

// launch starts the process and waits until it takes pods.
func (r *running) launch() {
	r.t.Helper()
	cmd := exec.CommandContext(context.Background(), r.bin("containerd"), "--config", filepath.Join(r.dir, "config.toml"))
	cmd.Env = append(os.Environ(), "PATH="+r.containerd.dir+":"+os.Getenv("PATH")) // where it finds its shim
	r.process = r.host.StartCmd(cmd)
	testutil.Eventually(r.t, time.Minute, func() error {
		select {
		case <-r.process.Exited():
			r.t.Fatalf("containerd ended: %v\n%s", r.process.Wait(), r.process.Output())
		default:
		}
		s, err := r.Status(r.t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		return notReady(s.Status, runtimeapi.RuntimeReady)
	})
}

// notReady says why conditions do not hold. A runtime has more of them, such as warnings of what it will drop.
func notReady(s *runtimeapi.RuntimeStatus, conditions ...string) error {
	for _, c := range s.Conditions {
		if slices.Contains(conditions, c.Type) && !c.Status {
			return fmt.Errorf("%s: %s", c.Type, c.Message)
		}
	}
	return nil
}

// awaitNetwork waits until the runtime has loaded the network's configuration, as the kubelet waits with pods.
func (r *running) awaitNetwork() {
	r.t.Helper()
	testutil.Eventually(r.t, 30*time.Second, func() error {
		s, err := r.Status(r.t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		return notReady(s.Status, runtimeapi.RuntimeReady, runtimeapi.NetworkReady)
	})
}

// stop ends the process in good order; its shims, and so the pods, go on.
func (r *running) stop() {
	r.t.Helper()
	r.process.Signal(unix.SIGTERM)
	<-r.process.Exited()
}

// clean takes all pods down, then the runtime, and names what it leaves mounted. It must be called while the process runs,
// which a test's own Cleanup comes too late for when the runtime was started anew.
func (r *running) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.removeAllPods(ctx); err != nil {
		r.t.Errorf("take down the pods: %v\n%s", err, r.process.Output())
	}
	r.stop()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		r.t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], r.dir+"/") {
			r.t.Errorf("left mounted: %s", f[1])
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
	if err := removeControlGroups(r.cgroup); err != nil {
		r.t.Error(err)
	}
}

// removeControlGroups is the kubelet's part. A controller that runc did not know keeps a folder for each container.
func removeControlGroups(name string) error {
	tops, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	var errs []error
	for _, top := range append(tops, "/sys/fs/cgroup/"+name) {
		below, _ := filepath.Glob(top + "/*/") // one that is gone has none
		for _, folder := range append(below, top) {
			if err := unix.Rmdir(folder); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove control group %s: %w", folder, err))
			}
		}
	}
	return errors.Join(errs...)
}
