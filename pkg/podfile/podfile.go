// Package podfile reads and writes the pod files: one for each attachment, by which the plugin informs the agent about this node's pods.
// Files about the node itself are in pkg/nodestate.
//
// It stores decisions and makes none, and its only contact with the kernel is to open a netns that a file names.
//
// On failure: every write is whole or absent (temporary file and rename). An unreadable file is an error with its path. A missing one is
// fs.ErrNotExist, or the zero value if absence has a meaning.
package podfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

const (
	// version is the file format written. A reader refuses a higher version: its fields may have another meaning.
	version = 1
	suffix  = ".json"
)

// State is what was decided for one redirect of one pod.
type State string

// The three states. The agent steers a pending redirect once the fallback is verified.
const (
	Steered   State = "steered"
	Pending   State = "pending"
	LeftAlone State = "left-alone"
)

// Decision is whether a pod's queries to one cluster DNS address are steered (a redirect), and if not, the reason.
type Decision struct {
	Redirect steer.Redirect `json:"redirect"`
	State    State          `json:"state"`
	Reason   string         `json:"reason,omitempty"`
	// Unanswered has the protocols over which the pod's queries or their answers were lost. Such a redirect is pending until a trial from
	// the pod's netns is answered.
	Unanswered []string `json:"unanswered,omitempty"`
	// Untried: no trial has run in the pod's netns yet. Such a redirect is pending until one is answered.
	Untried bool `json:"untried,omitempty"`
	// Excluded: steer.mode does not select the pod, which is not steered until it does.
	Excluded bool `json:"excluded,omitempty"`
	// Local is the node's local address that the pod names as nameserver in place of this cluster DNS address. The host's rules deliver
	// such queries to the agent or to kube-dns, whatever the state.
	Local netip.Addr `json:"local,omitzero"`
}

// File is one pod attachment as the plugin saw it. ContainerID and IfName are its key.
type File struct {
	Version     int    `json:"version"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Network     string `json:"network,omitempty"` // the conflist's name: GC lists are per network
	NetNS       string `json:"netns"`
	NetNSInode  uint64 `json:"netnsInode"`

	PodName      string `json:"podName,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
	PodUID       string `json:"podUID,omitempty"`

	Addresses     []netip.Addr `json:"addresses,omitempty"`
	HostInterface string       `json:"hostInterface,omitempty"`

	// From the runtime's dns capability; nil if it gave none.
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`

	Decisions []Decision `json:"decisions"`         // one per redirect
	Backend   string     `json:"backend,omitempty"` // the back end of the rules in the netns; "" is nftables
	OptOut    bool       `json:"optOut,omitempty"`  // annotation neardns.io/steer: "false"
	OptIn     bool       `json:"optIn,omitempty"`   // annotation neardns.io/steer: "true"
	// Adopted is the source by which the agent found a running pod; "" if the plugin wrote the file. The plugin may get no DEL for an
	// adopted pod: CRI-O deletes a pod with the network list that it was created with.
	Adopted Finder `json:"adopted,omitempty"`

	// DNS is nil in a file of an older plugin, which did not record it.
	DNS *DNS `json:"dns,omitempty"`
	// SearchCompletion is the value of the pod's annotation neardns.io/search-completion; nil if it is missing or ignored.
	SearchCompletion *bool `json:"searchCompletion,omitempty"`
	// KernelHits is the value of neardns.io/kernel-hits, likewise.
	KernelHits *bool     `json:"kernelHits,omitempty"`
	Ignored    []Ignored `json:"ignored,omitempty"`
}

// Finder is a source that reports running pods.
type Finder string

// The finders.
const (
	ByCache Finder = "cni-cache" // libcni's cache of results
	ByNRI   Finder = "nri"       // the runtime itself
)

// In returns the redirects whose decision is in the given state, ordered by cluster DNS address.
func (f File) In(s State) []steer.Redirect {
	var out []steer.Redirect
	for _, d := range f.Decisions {
		if d.State == s {
			out = append(out, d.Redirect)
		}
	}
	slices.SortFunc(out, func(a, b steer.Redirect) int { return a.ClusterDNS.Compare(b.ClusterDNS) })
	return out
}

// Locals returns the local addresses that the pod names as nameservers.
func (f File) Locals() []steer.Local {
	var out []steer.Local
	for _, d := range f.Decisions {
		if d.Local.IsValid() {
			out = append(out, steer.Local{Address: d.Local, ClusterDNS: d.Redirect.ClusterDNS})
		}
	}
	return out
}

// Table describes the pod table of one netns: the steered redirects of all its attachments. If two redirect one address differently, the
// first interface by name wins, since an address can have only one redirect. The result does not depend on the order of the arguments, so
// plugin and agent describe the same table.
func Table(attachments ...File) steer.Pod {
	var all File
	attachments = slices.Clone(attachments)
	slices.SortFunc(attachments, func(a, b File) int { return strings.Compare(a.IfName, b.IfName) })
	for _, f := range attachments {
		for _, r := range f.In(Steered) {
			if !slices.ContainsFunc(all.Decisions, func(d Decision) bool {
				return d.Redirect.ClusterDNS == r.ClusterDNS || d.Redirect.Steering == r.Steering
			}) {
				all.Decisions = append(all.Decisions, Decision{Redirect: r, State: Steered})
			}
		}
	}
	return steer.Pod{Redirects: all.In(Steered)}
}

// OpenNetNS opens the attachment's netns. It fails if the path no longer leads to the recorded netns: paths are
// reused, and rules must never be added to another pod. The caller closes the file.
func (f File) OpenNetNS() (*os.File, error) {
	ns, inode, err := OpenNetNS(f.NetNS)
	if err != nil {
		return nil, err
	}
	if inode != f.NetNSInode {
		ns.Close()
		return nil, fmt.Errorf("netns %s is now another one (inode %d, recorded %d): %w", f.NetNS, inode, f.NetNSInode, fs.ErrNotExist)
	}
	return ns, nil
}

// OpenNetNS opens a netns path and returns its inode, which identifies the netns while it lives. A path that is no netns
// is an error; a missing one wraps fs.ErrNotExist. It never blocks, not even on a pipe.
func OpenNetNS(path string) (*os.File, uint64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open netns %q: %w", path, err)
	}
	var vfs unix.Statfs_t
	var st unix.Stat_t
	if err = unix.Fstatfs(fd, &vfs); err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("stat netns %q: %w", path, err)
	}
	// A left-over path is an ordinary file on the file system that held the bind mount.
	if vfs.Type != unix.NSFS_MAGIC {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("%q is not a network namespace", path)
	}
	return os.NewFile(uintptr(fd), path), st.Ino, nil
}

// CheckKey returns an error if a container ID and an interface name cannot form a file name. The rules are those of the CNI
// specification, so that exactly the values that a runtime may pass are accepted.
func CheckKey(containerID, ifName string) error {
	// 160 leaves room under NAME_MAX for the interface name, escapes and the temporary file's own suffix.
	if containerID == "" || len(containerID) > 160 {
		return fmt.Errorf("container ID %.20q has %d characters: 1 to 160 are allowed", containerID, len(containerID))
	}
	for i, c := range []byte(containerID) {
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return fmt.Errorf("container ID %q: character %d (%q) is not allowed", containerID, i+1, c)
		}
	}
	if ifName == "" || len(ifName) > 15 || ifName == "." || ifName == ".." || strings.ContainsAny(ifName, "/: \t\n\v\f\r\x00") {
		return fmt.Errorf("interface name %q is not one that Linux allows", ifName)
	}
	return nil
}

// escapeIfName keeps the last "-" of a file name the separator: container IDs may hold dashes, escaped interface names not.
var escapeIfName = strings.NewReplacer("%", "%25", "-", "%2D")

// Path names the file of an attachment.
func Path(stateDir, containerID, ifName string) string {
	return filepath.Join(stateDir, nodestate.PodsName, containerID+"-"+escapeIfName.Replace(ifName)+suffix)
}

// keyOf is the inverse of Path for a bare file name.
func keyOf(name string) (containerID, ifName string, ok bool) {
	base, ok := strings.CutSuffix(name, suffix)
	at := strings.LastIndexByte(base, '-')
	if !ok || at < 0 {
		return "", "", false
	}
	containerID = base[:at]
	ifName = strings.NewReplacer("%2D", "-", "%25", "%").Replace(base[at+1:])
	return containerID, ifName, CheckKey(containerID, ifName) == nil
}

// Write stores f, replacing an older file of the same attachment. It fills in f.Version.
func Write(stateDir string, f File) error {
	data, err := encode(f)
	if err != nil {
		return err
	}
	path := Path(stateDir, f.ContainerID, f.IfName)
	if err := atomicfile.Write(path, data, nodestate.Options(0o600)); err != nil {
		return fmt.Errorf("write pod file: %w", err)
	}
	return nil
}

func encode(f File) ([]byte, error) {
	if err := CheckKey(f.ContainerID, f.IfName); err != nil {
		return nil, err
	}
	f.Version = version
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode pod file of %s: %w", f.ContainerID, err)
	}
	return append(data, '\n'), nil
}

// Read reads one pod file. A missing one wraps fs.ErrNotExist.
func Read(path string) (File, error) {
	data, err := atomicfile.Read(path, nodestate.MaxSize)
	if err != nil {
		return File{}, fmt.Errorf("read pod file: %w", err)
	}
	f, err := decode(data)
	if err != nil {
		return File{}, fmt.Errorf("pod file %s: %w", path, err)
	}
	// DEL and GC find the file by its name; neardns never writes a file whose contents have another key.
	if want := filepath.Base(Path("", f.ContainerID, f.IfName)); want != filepath.Base(path) {
		return File{}, fmt.Errorf("pod file %s: its contents belong to %s", path, want)
	}
	return f, nil
}

func decode(data []byte) (File, error) {
	var f File
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&f); err != nil {
		return File{}, fmt.Errorf("not valid JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return File{}, errors.New("more than one JSON value")
	}
	switch {
	case f.Version > version:
		return File{}, fmt.Errorf("format %d was written by a newer neardns, this one knows %d", f.Version, version)
	case f.Version < 1:
		return File{}, errors.New("no format version")
	}
	if err := CheckKey(f.ContainerID, f.IfName); err != nil {
		return File{}, err
	}
	for i, d := range f.Decisions {
		if d.State != Steered && d.State != Pending && d.State != LeftAlone {
			return File{}, fmt.Errorf("decisions[%d]: unknown state %q", i, d.State)
		}
	}
	if f.DNS != nil {
		return f, f.DNS.check()
	}
	return f, nil
}

// Remove deletes the file of an attachment. It succeeds if there is none.
func Remove(stateDir, containerID, ifName string) error {
	if err := CheckKey(containerID, ifName); err != nil {
		return err
	}
	if err := os.Remove(Path(stateDir, containerID, ifName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pod file: %w", err)
	}
	return nil
}

// Update replaces the file of an attachment that still has one, and fails with fs.ErrNotExist otherwise: the agent must not
// bring back the file of a pod that DEL has just removed.
func Update(stateDir string, f File) error {
	data, err := encode(f)
	if err != nil {
		return err
	}
	path := Path(stateDir, f.ContainerID, f.IfName)
	temp, err := atomicfile.Temp(path, data, nodestate.Options(0o600))
	if err != nil {
		return fmt.Errorf("update pod file: %w", err)
	}
	defer os.Remove(temp) // after the exchange this is the old contents
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	// Some file systems have no exchange. The window is then as small as two system calls can make it.
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		if _, err = os.Lstat(path); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		return fmt.Errorf("update pod file %s: %w", path, err)
	}
	return nil
}

// Amend reads the file of an attachment, passes it to change, and updates it if that returns true. Calls run one after the other, so that
// none overwrites the change of another. Plugins do not wait for it: a runtime makes no two calls for one container at once, and the
// agent acts after ADD. A missing file is fs.ErrNotExist.
func Amend(stateDir, containerID, ifName string, change func(*File) bool) error {
	path := Path(stateDir, containerID, ifName)
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("amend pod file: %w", err)
	}
	defer dir.Close() // and with it the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	f, err := Read(path)
	if err != nil || !change(&f) {
		return err
	}
	return Update(stateDir, f)
}

// List reads every pod file. It returns the readable files and an error for each other one; a missing folder is an empty list.
func List(stateDir string) ([]File, []error) {
	return list(stateDir, func(string) bool { return true })
}

// Siblings reads the other attachments of a container: the same sandbox with one more interface.
func Siblings(stateDir, containerID, ifName string) ([]File, []error) {
	return list(stateDir, func(name string) bool {
		id, other, ok := keyOf(name)
		return ok && id == containerID && other != ifName
	})
}

func list(stateDir string, want func(name string) bool) ([]File, []error) {
	names, err := entries(stateDir)
	if err != nil {
		return nil, []error{err}
	}
	var files []File
	var errs []error
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) || strings.HasPrefix(name, ".") || !want(name) {
			continue
		}
		f, err := Read(filepath.Join(stateDir, nodestate.PodsName, name))
		switch {
		case err == nil:
			files = append(files, f)
		case errors.Is(err, fs.ErrNotExist): // removed since the folder was read
		default:
			errs = append(errs, err)
		}
	}
	return files, errs
}

// Key names one attachment.
type Key struct{ ContainerID, IfName string }

// Keys returns the attachments that have a file, readable or not.
func Keys(stateDir string) ([]Key, error) {
	names, err := entries(stateDir)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, name := range names {
		if id, ifName, ok := keyOf(name); ok {
			keys = append(keys, Key{id, ifName})
		}
	}
	return keys, nil
}

// entries lists the pods folder in order; a missing folder has none.
func entries(stateDir string) ([]string, error) {
	return namesIn(filepath.Join(stateDir, nodestate.PodsName))
}

func namesIn(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pod files: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list pod files in %s: %w", dir, err)
	}
	slices.Sort(names)
	return names, nil
}

// Sweep removes temporary pod files that are older than age; killed writers leave them.
func Sweep(stateDir string, age time.Duration) error {
	return nodestate.Sweep(filepath.Join(stateDir, nodestate.PodsName), age)
}
