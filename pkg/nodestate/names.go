// Package nodestate owns the two folders that neardns keeps on a node: their names, the names of what is in them, and the small
// files by which the products tell each other of the node itself: the proof of the fallback, what the host's rules are, what the
// watch saw, and what the kubelet's configuration says. Pods' files are pkg/podfile's. Nothing else passes between plugin, agent
// and installer, so that none of them ever waits for another.
//
// Failure policy: every write is whole or absent (pkg/atomicfile). A file that cannot be read is an error with its path in it,
// never a guess; absence is the zero value.
package nodestate

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// Default folders. The first is gone at reboot, as pods are; the second survives it.
const (
	DefaultStateDir   = "/run/neardns"
	DefaultPersistDir = "/var/lib/neardns"
)

// Names in the state folder, beside those of the files that this package writes.
const (
	AgentLockName   = "agent.lock"    // whose holder has the node
	AgentSocketName = "agent.sock"    // where a living agent answers; also in a pod's own folder
	HandoverName    = "handover.sock" // where a successor asks for the node
	PluginLockName  = "plugin.lock"   // only locked, never read or written
	PluginLogName   = "plugin.log"    // unless the plugin's entry names another place; one older file is kept beside it, with the end .1
	PodsName        = "pods"          // the folder with a file for each attachment
)

// CacheSnapshotName is in the folder that survives a reboot.
const CacheSnapshotName = "cache.snapshot"

// BPFFolder is where the kernel's part of the agent with a state folder stands in the BPF file system: the node's has a name that
// people can find, any other's one of its own, without dots, which that file system does not take.
func BPFFolder(stateDir string) string {
	const folder = "/sys/fs/bpf/neardns"
	if stateDir == DefaultStateDir {
		return folder
	}
	sum := sha256.Sum256([]byte(stateDir))
	return folder + "-" + hex.EncodeToString(sum[:6])
}

// MaxSize bounds what is read of a file of either folder. The largest real one is a few kilobytes; anything bigger was not
// written by us.
const MaxSize = 1 << 20

// TempPrefix marks files that are being written. It begins with a dot, so that nobody takes one for a pod file.
const TempPrefix = ".write-"

// Options say how a file of either folder is written.
func Options(mode fs.FileMode) atomicfile.Options {
	return atomicfile.Options{Mode: mode, Folder: true, Pattern: TempPrefix + "*"}
}

// Sweep removes from a folder what writers that were killed left half done there, once it is older than age.
func Sweep(folder string, age time.Duration) error { return atomicfile.Sweep(folder, TempPrefix, age) }
