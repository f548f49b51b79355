// Package nodestate names the two folders of neardns on a node and the files in them, and reads and writes the small files about the node
// itself: the verified fallback, the host's rules, the last result of the watch, and the kubelet's DNS configuration. Pod files are in
// pkg/podfile.
//
// Plugin, agent and installer communicate only through these files, so that none of them waits for another.
//
// On failure: every write is whole or absent (pkg/atomicfile). An unreadable file is an error with its path; a missing one is the zero
// value.
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

// Names in the state folder, in addition to the files that this package writes.
const (
	AgentLockName   = "agent.lock"    // locked by the active agent
	AgentSocketName = "agent.sock"    // where a running agent answers; also in a pod's own folder
	HandoverName    = "handover.sock" // where a successor requests the handover
	PluginLockName  = "plugin.lock"   // only locked, never read or written
	PluginLogName   = "plugin.log"    // unless the plugin's entry names another place; one older file has the suffix .1
	PodsName        = "pods"          // the folder with a file for each attachment
)

// CacheSnapshotName is in the folder that survives a reboot.
const CacheSnapshotName = "cache.snapshot"

// BPFFolder returns the folder for the kernel program's pins in the BPF file system. For the default state folder it has a well-known
// name, for any other one a name of its own, without dots, which that file system does not allow.
func BPFFolder(stateDir string) string {
	const folder = "/sys/fs/bpf/neardns"
	if stateDir == DefaultStateDir {
		return folder
	}
	sum := sha256.Sum256([]byte(stateDir))
	return folder + "-" + hex.EncodeToString(sum[:6])
}

// MaxSize bounds what is read of a file of either folder. The largest real one is a few kilobytes; neardns writes
// nothing larger.
const MaxSize = 1 << 20

// TempPrefix marks files that are being written. It begins with a dot, so that no reader takes one for a pod file.
const TempPrefix = ".write-"

// Options returns how a file of either folder is written.
func Options(mode fs.FileMode) atomicfile.Options {
	return atomicfile.Options{Mode: mode, Folder: true, Pattern: TempPrefix + "*"}
}

// Sweep removes temporary files that are older than age from a folder; killed writers leave them.
func Sweep(folder string, age time.Duration) error { return atomicfile.Sweep(folder, TempPrefix, age) }
