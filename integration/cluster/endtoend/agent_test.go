package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/testutil"
)

// agent is the process id of the one agent that runs, by the node's own numbers.
func (s *suite) agent() int {
	s.t.Helper()
	var pid int
	s.eventually(func() error {
		found, err := s.Agents()
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("agents run: %v, want one", found)
		}
		if err == nil {
			pid = found[0]
		}
		return err
	})
	return pid
}

// kill sends a signal to a process of the node.
func (s *suite) kill(pid int, signal string) {
	s.t.Helper()
	_, err := s.Run(s.t.Context(), "kill", "-"+signal, strconv.Itoa(pid))
	s.must(err)
}

// awaitAgent waits until another agent than one serves, with all leases.
func (s *suite) awaitAgent(than int) {
	s.t.Helper()
	s.eventually(func() error {
		found, err := s.Agents()
		if err != nil {
			return err
		}
		if len(found) != 1 || slices.Contains(found, than) {
			return fmt.Errorf("agents run: %v, want one that is not %d", found, than)
		}
		return s.serving()
	})
}

// serving reports whether every lease is held and the fallback verified.
func (s *suite) serving() error { return s.Settled(s.t.Context()) }

// metric is one sample of the agent's.
func (s *suite) metric(sample string) float64 {
	s.t.Helper()
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		return conn, errors.Join(err, enter(s.hostNS(), func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		}))
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	r, err := client.Get("http://" + net.JoinHostPort(node.Addrs()[0].String(), "9253") + "/metrics")
	s.must(err)
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	s.must(err)
	v, err := testutil.Metric(string(page), sample)
	s.must(err)
	return v
}

// What a fault may cost at 500 queries per second. docs/project/faults.md has the figures of a machine that does nothing else; here a
// cluster and a load generator share it with the agent: a kill costs the kernel's time to end the process, and 100 ms are
// allowed; memory that runs out stops the agent first, while the kernel looks for what it can free, for which 200 ms are; a hang
// costs a lease's lifetime of 800 ms, and 1.2 s are allowed.
const (
	killMisses = 50
	oomMisses  = 100
	hangMisses = 600
)

// The agent is killed; the kubelet starts it again.
func (s *suite) testKill() {
	old := s.agent()
	y := s.underLoad(s.loaded, func() {
		s.kill(old, "KILL")
		s.awaitAgent(old)
	})
	s.wantMissed(y, killMisses)
	if y.Cache == 0 || y.Direct == 0 {
		s.t.Errorf("%d answers of the cache and %d of kube-dns: want both", y.Cache, y.Direct)
	}
	s.wantAnsweredBy(cached, s.loaded[0])
}

// The agent hangs for five seconds: within a lease's lifetime kube-dns answers.
func (s *suite) testHang() {
	old := s.agent()
	y := s.underLoad(s.loaded, func() {
		s.kill(old, "STOP")
		pass(5 * time.Second)
		s.kill(old, "CONT")
		s.eventually(s.serving)
	})
	s.wantMissed(y, hangMisses)
	if y.Direct == 0 {
		s.t.Error("kube-dns answered nothing")
	}
	s.wantAnsweredBy(cached, s.loaded[0])
}

// The agent's control group runs out of memory, and the kernel ends it.
func (s *suite) testOOM() {
	old := s.agent()
	group, limit := s.memoryGroup(old)
	s.must(os.WriteFile(s.Path(fmt.Sprintf("/proc/%d/oom_score_adj", old)), []byte("1000"), 0))
	in, out, err := os.Pipe()
	s.must(err)
	defer out.Close() // ends the ballast
	ballast := exec.Command(filepath.Join(s.Bin, "tools/faults"), "ballast")
	ballast.Stdin = in
	s.must(ballast.Start())
	s.must(in.Close())
	defer func() {
		_ = ballast.Process.Signal(unix.SIGKILL)
		_ = ballast.Wait()
	}()
	s.must(os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(ballast.Process.Pid)), 0))
	s.must(os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(48<<20)), 0))
	y := s.underLoad(s.loaded, func() {
		_, err := out.WriteString("\n")
		s.must(err)
		s.eventually(func() error {
			if found, err := s.Agents(); err != nil || slices.Contains(found, old) {
				return fmt.Errorf("the kernel did not end the agent: %v, %w", found, err)
			}
			return nil
		})
		_ = ballast.Process.Signal(unix.SIGKILL) // or the container's group could not be taken away
		s.awaitAgent(old)
	})
	s.wantMissed(y, oomMisses)
	if got := s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=neardns",
		"-o", `jsonpath={.items[0].status.containerStatuses[?(@.name=="agent")].lastState.terminated.reason}`); got != "OOMKilled" {
		s.t.Errorf("the agent's container ended by %q, want OOMKilled", got)
	}
	s.wantAnsweredBy(cached, s.loaded[0])
}

// memoryGroup is the folder of the control group that limits a process's memory, and the name of the limit.
func (s *suite) memoryGroup(pid int) (folder, limit string) {
	s.t.Helper()
	text := testutil.ReadFile(s.t, s.Path(fmt.Sprintf("/proc/%d/cgroup", pid)))
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) == 3 && f[1] == "memory":
			return "/sys/fs/cgroup/memory" + f[2], "memory.limit_in_bytes"
		case len(f) == 3 && f[0] == "0" && strings.Contains(f[2], "neardns-cluster"):
			folder = "/sys/fs/cgroup" + f[2]
		}
	}
	return folder, "memory.max"
}
