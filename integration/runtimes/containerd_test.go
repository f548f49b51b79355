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

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/neardns/neardns/integration/containerd"
	"github.com/neardns/neardns/pkg/testutil"
)

// release is one release of containerd, as the matrix knows it.
type release struct {
	containerd.Release
	row string // in docs/reference/compatibility.md's table
	// cni is the newest version of network lists that it speaks. From 1.1 on there is STATUS, and there are drop-in folders.
	cni string
}

// releases are Debian's, and the one that bin/tools/containerd2 holds.
func releases() []release {
	of := containerd.Releases(filepath.Join(root(), "bin"))
	return []release{{of[0], "Debian's containerd", "1.0.0"}, {of[1], "containerd", "1.1.0"}}
}

// running is a started containerd.
type running struct {
	release
	*cri
	host    *testutil.NetNS
	dir     string
	process *testutil.Process
}

// start configures and starts it in the host's netns, with the pods' image in its store.
func (c release) start(t *testing.T, host *testutil.NetNS, dir, cniBin, cniConf string) *running {
	t.Helper()
	r := &running{release: c, host: host, dir: dir}
	text := c.Config(containerd.Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Socket: r.socket(), Runc: filepath.Join(dir, "runc"),
		CNIBin: cniBin, CNIConf: cniConf, Sandbox: podImage, NRI: dir,
	})
	testutil.Must(t, os.WriteFile(r.config(), []byte(text), 0o644))
	cgroup := fmt.Sprintf("neardns-test-%s-%d", c.Name, os.Getpid())
	r.cri = dialCRI(t, r.socket(), cgroup)
	sweep(t)
	register(t, note{Dir: dir, CGroup: cgroup})
	r.launch()
	if out, err := exec.CommandContext(t.Context(), c.Program("ctr"), c.Import(r.socket(), buildImage(t, dir))...).CombinedOutput(); err != nil {
		t.Fatalf("import the pods' image: %v\n%s", err, out)
	}
	return r
}

func (r *running) config() string { return filepath.Join(r.dir, "config.toml") }
func (r *running) socket() string { return filepath.Join(r.dir, "c.sock") }

// launch starts the process and waits until it takes pods.
func (r *running) launch() {
	r.t.Helper()
	cmd := exec.CommandContext(context.Background(), r.Program("containerd"), "--config", r.config())
	cmd.Env = append(os.Environ(), "PATH="+r.Dir+":"+os.Getenv("PATH")) // where it finds its shim
	r.process = r.host.StartCmd(cmd)
	testutil.Eventually(r.t, func() error {
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

// notReady is the reason why conditions do not hold. A runtime has more of them, such as warnings of what it will drop.
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
	testutil.Eventually(r.t, func() error {
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
// which a test's own Cleanup comes too late for when the runtime was restarted.
func (r *running) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience())
	defer cancel()
	if err := r.removeAllPods(ctx); err != nil {
		r.t.Errorf("take down the pods: %v\n%s", err, r.process.Output())
	}
	r.stop()
	// containerd 1.6 now and then leaves a shim of a pod that it has removed.
	for _, pid := range (note{Dir: r.dir}).shims() {
		r.t.Logf("a shim was left: %d", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	testutil.Check(r.t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], r.dir+"/") {
			r.t.Errorf("left mounted: %s", f[1])
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
	testutil.Check(r.t, removeControlGroups(r.cgroup))
}

// removeControlGroups is the kubelet's part. A controller that runc did not know keeps a folder for each container.
func removeControlGroups(name string) error {
	var errs []error
	for _, folder := range (note{CGroup: name}).cgroups() {
		if err := unix.Rmdir(folder); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", folder, err))
		}
	}
	return errors.Join(errs...)
}
