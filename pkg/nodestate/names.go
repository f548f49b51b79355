// Package nodestate names the two folders in which neardns keeps its state on a node, and the files in them. It also reads and writes the
// small files about the node itself: the verified fallback, the host's rules, the last results of the watch and of the role `hosts`, and
// the kubelet's DNS settings. The files about pods are in pkg/podfile.
//
// Plugin, agent and installer exchange their state through these files, so each of them works while the others do not run.
//
// On failure: a write is complete or has no effect (pkg/atomicfile). The error for an unreadable file has its path. A missing file reads
// as the zero value.
package nodestate

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// Default folders. A reboot removes the first, as it ends the pods that its files describe; the second survives it.
const (
	DefaultStateDir   = "/run/neardns"
	DefaultPersistDir = "/var/lib/neardns"
)

// Names of files in the state folder, in addition to those that this package reads and writes.
const (
	AgentLockName   = "agent.lock"    // locked by the active agent
	AgentSocketName = "agent.sock"    // socket on which an agent reports its status; also in the folder of --pod-dir
	HandoverName    = "handover.sock" // where a successor requests the handover
	PluginLockName  = "plugin.lock"   // an empty file that podfile.Lock locks
	PluginLogName   = "plugin.log"    // default of the plugin's key logFile; the previous file has the suffix .1
	PodsName        = "pods"          // folder of the pod files, one for each network interface that CNI made for a pod
)

// CacheSnapshotName is the name of the cache's snapshot in the folder that survives a reboot.
const CacheSnapshotName = "cache.snapshot"

// BPFFolder returns the folder in the BPF file system where the kernel program's objects are pinned. It has a fixed name for the default
// state folder. For any other, a hash makes the name unique, because names in that file system may have no dots.
func BPFFolder(stateDir string) string {
	const folder = "/sys/fs/bpf/neardns"
	if stateDir == DefaultStateDir {
		return folder
	}
	sum := sha256.Sum256([]byte(stateDir))
	return folder + "-" + hex.EncodeToString(sum[:6])
}

// MaxSize is the maximum size of a record or a pod file, in bytes; a larger file is an error. Real ones have a few kilobytes.
const MaxSize = 1 << 20

// TempPrefix begins the names of files that are still being written. Readers of pod files skip names that begin with a dot.
const TempPrefix = ".write-"

// Options returns the options with which a file in the state folder or the persistent folder is written.
func Options(mode fs.FileMode) atomicfile.Options {
	return atomicfile.Options{Mode: mode, Folder: true, Pattern: TempPrefix + "*"}
}

// Sweep removes temporary files older than age from a folder. Writers that were killed left them.
func Sweep(folder string, age time.Duration) error { return atomicfile.Sweep(folder, TempPrefix, age) }
