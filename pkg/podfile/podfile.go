// Package podfile reads and writes the pod files: one JSON file for each attachment, which is a network interface that CNI made for a pod.
// The plugin and the agent exchange their decisions about this node's pods through these files. Files about the node itself are in
// pkg/nodestate.
//
// The package stores decisions and makes none. It does not touch the network, except that it opens a netns that a pod file names.
//
// On failure: a write is complete or has no effect (temporary file and rename). The error for an unreadable file has its path. A missing
// file is fs.ErrNotExist when it is read or updated; a missing folder counts as empty.
package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
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
	// version is the version of the file format. A reader refuses a file of a higher version, because its fields may have another meaning.
	version = 1
	suffix  = ".json"
)

// State is the decision about one redirect of one pod.
type State string

// The three states. The agent steers a pending redirect once a probe has shown that kube-dns answers without the agent (the fallback),
// the host's rules have the redirect and, if the pod needs a trial, that trial is answered.
const (
	Steered   State = "steered"    // the pod's nftables or iptables rules send its queries to the node's cache
	Pending   State = "pending"    // the pod's queries to the cluster DNS address go to kube-dns for now
	LeftAlone State = "left-alone" // the pod's queries are not rewritten
)

// Decision records whether a pod's queries to one cluster DNS address are steered (a redirect), and if not, the reason.
type Decision struct {
	Redirect steer.Redirect `json:"redirect"`
	State    State          `json:"state"`
	Reason   string         `json:"reason,omitempty"`
	// Unanswered lists the protocols over which the pod's queries or their answers were lost. The redirect is then pending until a trial
	// from the pod's netns is answered, or the host's filters let a query of the pod pass again.
	Unanswered []string `json:"unanswered,omitempty"`
	// Untried means that no trial from the pod's netns has had a result yet. The redirect is then pending until a trial is answered.
	Untried bool `json:"untried,omitempty"`
	// Excluded means that the configuration key steer.mode does not select this pod. The pod is not steered until that changes.
	Excluded bool `json:"excluded,omitempty"`
	// Local is the node's local address that the pod has as nameserver instead of this cluster DNS address. Whatever State is, the host's
	// rules decide whether the agent or kube-dns gets the queries to it.
	Local netip.Addr `json:"local,omitzero"`
}

// File records one attachment of a pod to a network, as the plugin (if Adopted is set, the agent) found it. ContainerID and IfName
// identify it.
type File struct {
	Version     int    `json:"version"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Network     string `json:"network,omitempty"` // name of the conflist; a GC call is about the attachments of one network
	NetNS       string `json:"netns"`
	NetNSInode  uint64 `json:"netnsInode"`

	PodName      string `json:"podName,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`
	PodUID       string `json:"podUID,omitempty"`

	Addresses     []netip.Addr `json:"addresses,omitempty"`
	HostInterface string       `json:"hostInterface,omitempty"`

	// The DNS settings from the runtime's dns capability; nil if it passed none.
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`

	Decisions []Decision `json:"decisions"`         // one per redirect
	Backend   string     `json:"backend,omitempty"` // back end of the rules in the netns; "" is nftables
	// Adopted is ByCache for a pod that ran before the plugin was installed (earlier releases also wrote "nri"); "" if the plugin wrote the
	// file. The plugin may get no DEL for an adopted pod, because CRI-O deletes a pod with the conflist with which it created the pod.
	Adopted string `json:"adopted,omitempty"`

	// DNS is nil if an older plugin wrote the file, which did not record it.
	DNS *DNS `json:"dns,omitempty"`
	Annotations
}

// Annotations has the values of a pod's annotations that are valid and not ignored, and what is ignored.
type Annotations struct {
	OptOut     bool      `json:"optOut,omitempty"`     // neardns.io/steer: "false": the pod must not be steered
	OptIn      bool      `json:"optIn,omitempty"`      // neardns.io/steer: "true", for steer.mode: namespaces or annotated
	KernelHits *bool     `json:"kernelHits,omitempty"` // neardns.io/kernel-hits; nil without this annotation
	Ignored    []Ignored `json:"ignored,omitempty"`    // annotations and configured settings that have no effect on the pod
}

// ByCache means that the agent found the running pod in libcni's cache of results.
const ByCache = "cni-cache"

// In returns the pod's redirects that are in the given state, sorted by cluster DNS address.
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

// Locals returns the node's local addresses that the pod has as nameservers.
func (f File) Locals() []steer.Local {
	var out []steer.Local
	for _, d := range f.Decisions {
		if d.Local.IsValid() {
			out = append(out, steer.Local{Address: d.Local, ClusterDNS: d.Redirect.ClusterDNS})
		}
	}
	return out
}

// Table returns the description of the pod table in one netns, with the steered redirects of all attachments in that netns. An address can
// have only one redirect, so if two attachments differ, the one whose interface name sorts first wins. The result does not depend on the
// order of the arguments, so that plugin and agent describe the same table.
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

// OpenNetNS opens the attachment's netns. It fails if the path now leads to another netns than the recorded one, because paths are reused,
// and rules must never go to another pod's netns. The caller closes the file.
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

// OpenNetNS opens the netns at path and returns its inode number, which identifies the netns while it exists. It returns an error if the
// path is not a namespace; the error wraps fs.ErrNotExist if the path is missing. It never blocks, not even on a pipe.
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
	// A path from which the netns was unmounted remains as an ordinary file.
	if vfs.Type != unix.NSFS_MAGIC {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("%q is not a network namespace", path)
	}
	return os.NewFile(uintptr(fd), path), st.Ino, nil
}

// CheckKey returns an error if a container ID and an interface name cannot form a file name. It allows what the CNI specification allows,
// but only up to 160 characters of container ID.
func CheckKey(containerID, ifName string) error {
	// 160 leaves room in a file name (NAME_MAX is 255) for the interface name with its escapes and the suffix.
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

// escapeIfName escapes dashes in interface names, so that the last dash in a file name ends the container ID, which may have dashes.
var escapeIfName = strings.NewReplacer("%", "%25", "-", "%2D")

// Path returns the path of an attachment's file.
func Path(stateDir, containerID, ifName string) string {
	return filepath.Join(stateDir, nodestate.PodsName, containerID+"-"+escapeIfName.Replace(ifName)+suffix)
}

// keyOf returns the container ID and the interface name in the name of a pod file. It is the inverse of Path.
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

// Write stores f as the file of its attachment, and replaces an older one. It writes the current format version.
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

// Read reads one pod file. If the file is missing, the error wraps fs.ErrNotExist.
func Read(path string) (File, error) {
	data, err := atomicfile.Read(path, nodestate.MaxSize)
	if err != nil {
		return File{}, fmt.Errorf("read pod file: %w", err)
	}
	f, err := decode(data)
	if err != nil {
		return File{}, fmt.Errorf("pod file %s: %w", path, err)
	}
	// neardns never writes a file whose name does not fit its contents. DEL and GC find a file by its name alone.
	if want := filepath.Base(Path("", f.ContainerID, f.IfName)); want != filepath.Base(path) {
		return File{}, fmt.Errorf("pod file %s: its contents belong to %s", path, want)
	}
	return f, nil
}

func decode(data []byte) (File, error) {
	var f File
	if err := json.Unmarshal(data, &f); err != nil {
		return File{}, fmt.Errorf("not valid JSON: %w", err)
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

// Remove deletes the file of an attachment. It succeeds if there is no such file.
func Remove(stateDir, containerID, ifName string) error {
	if err := CheckKey(containerID, ifName); err != nil {
		return err
	}
	if err := os.Remove(Path(stateDir, containerID, ifName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pod file: %w", err)
	}
	return nil
}

// Update replaces the file of an attachment, and fails with fs.ErrNotExist if there is none. So the agent cannot restore the file of a pod
// that DEL has just removed.
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
	defer os.Remove(temp) // after RENAME_EXCHANGE, temp has the pod file's old contents
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	// Some file systems have no RENAME_EXCHANGE. Then check and rename; only a DEL between these two system calls goes unnoticed.
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

// Amend reads the file of an attachment, passes it to change, and stores it if change returns true. A lock makes calls of Amend run one
// after the other, so that none overwrites another's change. The plugin writes without this lock, because Lock orders its calls for one
// container, and the agent changes a file only after ADD has written it. If the file is missing, the error wraps fs.ErrNotExist.
func Amend(stateDir, containerID, ifName string, change func(*File) bool) error {
	path := Path(stateDir, containerID, ifName)
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("amend pod file: %w", err)
	}
	defer dir.Close() // releases the lock, too
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	f, err := Read(path)
	if err != nil || !change(&f) {
		return err
	}
	return Update(stateDir, f)
}

// List reads all pod files. It returns the readable ones, and an error for each unreadable one. A missing folder counts as empty.
func List(stateDir string) ([]File, []error) {
	return list(stateDir, func(string) bool { return true })
}

// Siblings reads the files of the container's attachments by other interfaces than ifName. If ifName is "", it reads the files of all its
// attachments.
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
		case errors.Is(err, fs.ErrNotExist): // the pod file was removed after the folder was read
		default:
			errs = append(errs, err)
		}
	}
	return files, errs
}

// Key identifies one attachment.
type Key struct{ ContainerID, IfName string }

// Keys returns all attachments that have a file, even if it is not readable.
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

// entries returns the sorted names of the files in the pods folder; none if the folder is missing.
func entries(stateDir string) ([]string, error) {
	files, err := os.ReadDir(filepath.Join(stateDir, nodestate.PodsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pod files: %w", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names, nil
}

// Sweep removes temporary pod files older than age. Writers that were killed left them.
func Sweep(stateDir string, age time.Duration) error {
	return nodestate.Sweep(filepath.Join(stateDir, nodestate.PodsName), age)
}
