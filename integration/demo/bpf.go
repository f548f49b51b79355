package main

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
)

const (
	bpf = "/sys/fs/bpf"
	// mounted is there while the BPF file system is the demo's own.
	mounted = folder + "/bpf-mounted"
)

// mountBPF mounts the BPF file system, in which kernel hits outlive the agent, on a machine without one.
func (s *show) mountBPF() {
	var there unix.Statfs_t
	if unix.Statfs(bpf, &there) == nil && there.Type == unix.BPF_FS_MAGIC {
		return
	}
	s.write(mounted, "")
	if err := unix.Mount("bpf", bpf, "bpf", 0, ""); err != nil {
		s.tell("no BPF file system, so no kernel hits: %v", err)
		_ = os.Remove(mounted)
	}
}

// removeBPF removes what the demo's agents left in the BPF file system, and the file system if it is the demo's own.
func removeBPF() {
	_ = os.RemoveAll(nodestate.BPFFolder(stateDir))
	if _, err := os.Stat(mounted); err == nil {
		_ = unix.Unmount(bpf, unix.MNT_DETACH)
	}
}
