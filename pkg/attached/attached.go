// Package attached reads libcni's cache of results, which lists the containers that a runtime attached to a network. The cache outlives the
// runtime and has a file for each attachment from the end of its ADD to the end of its DEL.
//
// It only reads. It does not check that a container still exists: a file may be a leftover whose netns another container uses now.
//
// On failure: an unreadable file is an error that names it; a missing one is fs.ErrNotExist.
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

// DefaultRoot is where libcni keeps its cache unless a runtime names another place.
const DefaultRoot = "/var/lib/cni"

// Keys of the capability arguments that are read.
const (
	keyDNS         = "dns"
	keyAnnotations = "io.kubernetes.cri.pod-annotations"
)

// kind is what libcni writes into its files from version 0.8 on. Older ones are bare results, which name no container.
const kind = "cniCacheV1"

// maxSize bounds what is read of one file, in bytes. The largest real ones hold a long list and a pod's annotations, which
// Kubernetes bounds at 256 KiB.
const maxSize = 1 << 20

// Pod is one attachment. Fields are empty if unknown.
type Pod struct {
	File                         string // base name of the cache's file; "" if another source reported the pod
	Network, ContainerID, IfName string
	NetNS                        string // path
	Namespace, Name, UID         string // of a kubelet's pod
	Config                       []byte // the list that it was attached by
	Addresses                    []netip.Addr
	DNS                          *resolvconf.Settings // as the runtime handed them to plugins
	// Annotations are the pod's; nil if they are unknown, which is not the same as none.
	Annotations map[string]string
	Made        time.Time // the end of its ADD
}

// Folders are the places below a root that hold attachments: libcni's own, and that of dockershim and cri-dockerd.
func Folders(root string) []string {
	return []string{filepath.Join(root, "results"), filepath.Join(root, "cache", "results")}
}

// List returns the paths of all files, in order. Missing folders count as empty; known is false if all are missing.
func List(root string) (paths []string, known bool, err error) {
	for _, folder := range Folders(root) {
		entries, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("list attachments: %w", err)
		}
		known = true
		for _, e := range entries {
			if !e.IsDir() {
				paths = append(paths, filepath.Join(folder, e.Name()))
			}
		}
	}
	return paths, known, nil
}

// FileName is what libcni calls the file of an attachment.
func FileName(network, containerID, ifName string) string {
	return network + "-" + containerID + "-" + ifName
}

// Read reads one file. libcni writes it in place, so a new file may be incomplete; that is an error like any other.
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
		NetNS          string                     `json:"netns"` // not before libcni 1.3
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
	// A runtime may pass these in any form; an unreadable value counts as unknown.
	if raw, ok := cached.CapabilityArgs[keyDNS]; ok {
		var dns struct{ Servers, Searches, Options []string } // containerd writes capitals, the convention has small letters
		if json.Unmarshal(raw, &dns) == nil {
			p.DNS = &resolvconf.Settings{Nameservers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
		}
	}
	if raw, ok := cached.CapabilityArgs[keyAnnotations]; ok {
		p.Annotations = map[string]string{} // null is a pod without any
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

// Addresses picks the container's addresses of a result: those on the interface that the attachment is about. Results without
// interfaces, as old plugins give, have only the container's.
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

// IsPod reports whether an attachment belongs to a kubelet's pod with addresses other than loopback.
func (p Pod) IsPod() bool {
	return p.Namespace != "" && p.Name != "" && slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return !a.IsLoopback() })
}

// String names the pod for people, or else its container.
func (p Pod) String() string {
	if p.Namespace == "" || p.Name == "" {
		return strings.TrimSpace("container " + p.ContainerID)
	}
	return p.Namespace + "/" + p.Name
}
