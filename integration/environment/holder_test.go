package environment

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestPortTaken: another process has port 53 as the agent starts, on the very address or on the wildcard. Status and
// doctor report it, the agent tries again, pods have kube-dns, and the cache serves once the port is free.
func TestPortTaken(t *testing.T) {
	for name, addr := range map[string]string{"address": steering4.String(), "wildcard": "0.0.0.0"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, testutil.IPv4, testutil.NFTables)
			var holder net.PacketConn
			n.Host.Do(func() {
				lc := net.ListenConfig{Control: freebind}
				var err error
				if holder, err = lc.ListenPacket(t.Context(), "udp4", net.JoinHostPort(addr, "53")); err != nil {
					t.Fatal(err)
				}
			})
			defer holder.Close()
			n.launch()
			testutil.Eventually(t, func() error {
				if a, err := n.agentStatus(); err != nil || !strings.Contains(a.Faults["server"], "ss -lnp") || a.LastFault == nil {
					return fmt.Errorf("the fault is not reported: %+v, %w", a, err)
				}
				return nil
			})
			n.wantSeen("port taken", "FAIL", "agent", "listen on udp 169.254.20.11:53")
			for _, at := range n.targets() {
				_, err := n.ask(at, freshName(), testutil.Attempt)
				testutil.Check(t, err, "port taken")
			}
			if tries := strings.Count(n.agent.Output(), unix.EADDRINUSE.Error()); tries > 1 {
				t.Errorf("said %d times", tries)
			}
			holder.Close()
			n.awaitReady()
			n.awaitCached("port free")
			n.wantHealthy("port free")
		})
	}
}

// freebind lets a socket be bound to an address that no link has yet.
func freebind(_, _ string, c syscall.RawConn) error {
	var err error
	control := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(control, err)
}

// TestFullAndReadOnly fills the disk under the state folder: an agent that runs goes on, and one that starts serves. Then it mounts the
// disk read-only: no agent starts, its error has the reason, and kube-dns answers.
func TestFullAndReadOnly(t *testing.T) {
	n := newNode(t, testutil.IPv4, testutil.NFTables)
	disk := n.path("disk")
	testutil.Must(t, os.Mkdir(disk, 0o755))
	testutil.Must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() {
		if n.agent != nil {
			n.agent.Kill()
		}
		testutil.Check(t, unix.Unmount(disk, unix.MNT_DETACH))
	})
	// The pod was made under the first folder; its file moves along.
	testutil.Must(t, os.CopyFS(filepath.Join(disk, "run"), os.DirFS(n.state)))
	n.state = filepath.Join(disk, "run")
	n.write("node.yaml", strings.Replace(n.config(), n.path("lib"), filepath.Join(disk, "lib"), 1))
	n.start()

	fill, err := os.Create(filepath.Join(disk, "fill"))
	testutil.Must(t, err)
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	_ = fill.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	pods := n.keepAsking()
	n.agent.Signal(unix.SIGHUP)
	n.awaitCached("disk full")
	testutil.Check(t, n.agent.Terminate(testutil.Patience()), "stop on a full disk")
	n.start()
	n.awaitCached("started on a full disk")

	pods.end("disk full")

	n.agent.Kill() // what it and its programs hold open keeps the mount writable
	testutil.Eventually(t, func() error { return unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=64k") })
	if code, text := n.run("node", "--config", n.path("node.yaml")); code != 1 || !strings.Contains(text, "read-only") {
		t.Errorf("start on a read-only folder exits with %d: %s", code, text)
	}
	for _, at := range n.targets() {
		_, err = n.ask(at, freshName(), testutil.Attempt)
		testutil.Check(t, err, "no agent, read-only")
	}
}
