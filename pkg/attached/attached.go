// Package attached reads libcni's result cache, which shows the containers that a container runtime has attached to a network. The cache
// has a file for each attachment, from the end of the CNI ADD to the end of the DEL, even while the runtime is not running.
//
// The package only reads. It does not check that a container still exists: a file may be a leftover, and its netns may be another
// container's now.
//
// On failure: the error for an unreadable file names the file. For a missing file it wraps fs.ErrNotExist.
package attached

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

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/resolvconf"
)

// DefaultRoot is the folder of libcni's cache, unless the runtime sets another one.
const DefaultRoot = "/var/lib/cni"

// Keys of the capability arguments that decode uses.
const (
	keyDNS         = "dns"
	keyAnnotations = "io.kubernetes.cri.pod-annotations"
)

// kind is the field "kind" in the files of libcni 0.8 and later. Files of earlier versions are bare CNI results, which do not name the
// container.
const kind = "cniCacheV1"

// maxSize is the maximum size of a cache file, in bytes. The largest real files have a long conflist and a pod's annotations, which
// Kubernetes limits to 256 KiB.
const maxSize = 1 << 20

// Pod is one attachment of a container to a network, made by one CNI ADD. Unknown fields are empty.
type Pod struct {
	File                         string // base name of the cache file
	Network, ContainerID, IfName string
	NetNS                        string // path of the container's netns
	Namespace, Name, UID         string // of the Kubernetes pod
	Config                       []byte // the conflist that the runtime used
	Addresses                    []netip.Addr
	DNS                          *resolvconf.Settings // as the runtime passed them to the plugins
	// Annotations are the pod's annotations. nil means that they are unknown; an empty map means that the pod has none.
	Annotations map[string]string
	Made        time.Time // when libcni wrote the file, at the end of the CNI ADD
}

// Folders returns the folders below a cache root that may have files: that of libcni, and that of dockershim and cri-dockerd.
func Folders(root string) []string {
	return []string{filepath.Join(root, "results"), filepath.Join(root, "cache", "results")}
}

// List returns the paths of all cache files below root, sorted within each folder. A missing folder counts as empty.
func List(root string) (paths []string, err error) {
	for _, folder := range Folders(root) {
		entries, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list attachments: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				paths = append(paths, filepath.Join(folder, e.Name()))
			}
		}
	}
	return paths, nil
}

// FileName returns the name that libcni gives to the file of an attachment.
func FileName(network, containerID, ifName string) string {
	return network + "-" + containerID + "-" + ifName
}

// Read reads one cache file. libcni writes it in place, so a new file may be incomplete, and Read then returns an error.
func Read(path string) (Pod, error) {
	text, err := atomicfile.Read(path, maxSize)
	if err != nil {
		return Pod{}, fmt.Errorf("read attachment: %w", err)
	}
	p, err := decode(text)
	if err != nil {
		return Pod{}, fmt.Errorf("attachment %s: %w", path, err)
	}
	p.File = filepath.Base(path)
	if want := FileName(p.Network, p.ContainerID, p.IfName); p.File != want {
		return Pod{}, fmt.Errorf("attachment %s: its contents belong to %s", path, want)
	}
	if st, err := os.Stat(path); err == nil {
		p.Made = st.ModTime()
	}
	return p, nil
}

func decode(text []byte) (Pod, error) {
	var cached struct {
		Kind           string                     `json:"kind"`
		ContainerID    string                     `json:"containerId"`
		Config         []byte                     `json:"config"` // base64 in the file
		IfName         string                     `json:"ifName"`
		NetworkName    string                     `json:"networkName"`
		NetNS          string                     `json:"netns"` // libcni before 1.2 does not write this key
		CNIArgs        [][2]string                `json:"cniArgs"`
		CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
		Result         json.RawMessage            `json:"result"`
	}
	if err := json.Unmarshal(text, &cached); err != nil {
		return Pod{}, fmt.Errorf("not valid JSON: %w", err)
	}
	if cached.Kind != kind {
		return Pod{}, fmt.Errorf("kind %q is not %s: libcni before 0.8 or another program wrote it", cached.Kind, kind)
	}
	p := Pod{Network: cached.NetworkName, ContainerID: cached.ContainerID, IfName: cached.IfName, NetNS: cached.NetNS, Config: cached.Config}
	for _, a := range cached.CNIArgs {
		switch a[0] {
		case "K8S_POD_NAMESPACE":
			p.Namespace = a[1]
		case "K8S_POD_NAME":
			p.Name = a[1]
		case "K8S_POD_UID":
			p.UID = a[1]
		}
	}
	// Runtimes may pass these arguments in any form. A value that cannot be decoded counts as unknown.
	if raw, ok := cached.CapabilityArgs[keyDNS]; ok {
		// encoding/json ignores the letter case of keys: containerd writes "Servers", the CNI convention is "servers".
		var dns struct{ Servers, Searches, Options []string }
		if json.Unmarshal(raw, &dns) == nil {
			p.DNS = &resolvconf.Settings{Nameservers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
		}
	}
	if raw, ok := cached.CapabilityArgs[keyAnnotations]; ok {
		p.Annotations = map[string]string{} // JSON null means a pod without annotations
		if json.Unmarshal(raw, &p.Annotations) != nil {
			p.Annotations = nil
		} else if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
	}
	if len(cached.Result) == 0 {
		return p, nil
	}
	typed, err := create.CreateFromBytes(cached.Result)
	if err != nil {
		return Pod{}, fmt.Errorf("result: %w", err)
	}
	result, err := types100.NewResultFromResult(typed)
	if err != nil {
		return Pod{}, fmt.Errorf("result: %w", err)
	}
	p.Addresses = Addresses(result, p.IfName)
	if p.NetNS == "" {
		for _, i := range result.Interfaces {
			if i != nil && i.Name == p.IfName {
				p.NetNS = i.Sandbox
			}
		}
	}
	return p, nil
}

// Addresses returns the addresses in a CNI result that the container has on its interface ifName. An address for which the result names
// no interface, as old plugins return it, counts too.
func Addresses(r *types100.Result, ifName string) []netip.Addr {
	var out []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) {
			if on := r.Interfaces[*i]; on == nil || on.Sandbox == "" || on.Name != ifName {
				continue
			}
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// IsPod reports whether the attachment is of a Kubernetes pod that has an address other than loopback.
func (p Pod) IsPod() bool {
	return p.Namespace != "" && p.Name != "" && slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return !a.IsLoopback() })
}

// String returns the pod's namespace and name, or the container ID if they are unknown.
func (p Pod) String() string {
	if p.Namespace == "" || p.Name == "" {
		return strings.TrimSpace("container " + p.ContainerID)
	}
	return p.Namespace + "/" + p.Name
}
