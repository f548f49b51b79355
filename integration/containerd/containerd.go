// Package containerd knows the two releases of containerd that tests run pods with: where their programs are, and what each
// calls its settings.
package containerd

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Release is one of them.
type Release struct {
	Name  string
	Dir   string // where its programs are; "": on the PATH
	major int
}

// Releases are Debian's and the one that `make` builds into bin, the repository's folder of that name.
func Releases(bin string) []Release {
	return []Release{
		{Name: "containerd16", major: 1},
		{Name: "containerd2", Dir: filepath.Join(bin, "tools/containerd2"), major: 2},
	}
}

// Find is the release of a name.
func Find(bin, name string) (Release, error) {
	var names []string
	for _, r := range Releases(bin) {
		if r.Name == name {
			return r, nil
		}
		names = append(names, r.Name)
	}
	return Release{}, fmt.Errorf("no runtime %q: it is one of %s", name, strings.Join(names, ", "))
}

// Program is the path of one of its programs, or its name where the PATH leads to it.
func (r Release) Program(name string) string { return filepath.Join(r.Dir, name) }

// Version is the one that it prints; an error means that it is not here.
func (r Release) Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, r.Program("containerd"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Name, err)
	}
	f := strings.Fields(string(out))
	if len(f) < 3 {
		return "", fmt.Errorf("%s: unreadable version %q", r.Name, out)
	}
	return strings.TrimPrefix(f[2], "v"), nil
}

// Config is what a test wants of its own containerd. All paths are absolute.
type Config struct {
	Root, State, Socket string
	Runc                string // runc's state folder
	CNIBin, CNIConf     string
	Sandbox             string // image of the pods' sandboxes, imported beforehand
	Registries          string // folder that reports how each registry is reached (hosts.toml); "": over TLS
	NRI                 string // folder for NRI's socket nri.sock, from containerd 2 on; "": without NRI
}

// Config is the text of the configuration file: snapshots that need no filesystem of their own, and no OOM score below the
// caller's own, which a container may not have either.
func (r Release) Config(c Config) string {
	text := config1
	if r.major == 2 {
		text = config2 + withoutNRI
		if c.NRI != "" {
			text = config2 + withNRI
		}
	}
	return strings.NewReplacer("<root>", c.Root, "<state>", c.State, "<socket>", c.Socket, "<runc>", c.Runc,
		"<cnibin>", c.CNIBin, "<cniconf>", c.CNIConf, "<sandbox>", c.Sandbox, "<registries>", c.Registries, "<nri>", c.NRI).Replace(text)
}

// Import are ctr's arguments that take an image archive into the store that pods' images come from.
func (r Release) Import(socket, archive string) []string {
	args := []string{"--address", socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native"}
	if r.major == 2 {
		args = append(args, "--local") // the transfer service unpacks only what its configuration lists
	}
	return append(args, archive)
}

const (
	config1 = `version = 2
root = "<root>"
state = "<state>"
[grpc]
  address = "<socket>"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "<sandbox>"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "<registries>"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "<runc>"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "<cnibin>"
    conf_dir = "<cniconf>"
`
	config2 = `version = 3
root = "<root>"
state = "<state>"
[grpc]
  address = "<socket>"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "<sandbox>"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "<registries>"
[plugins."io.containerd.transfer.v1.local"]
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux"
    snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "<runc>"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["<cnibin>"]
    conf_dir = "<cniconf>"
`
	withoutNRI = `[plugins."io.containerd.nri.v1.nri"]
  disable = true
`
	withNRI = `[plugins."io.containerd.nri.v1.nri"]
  socket_path = "<nri>/nri.sock"
  plugin_path = "<nri>/nri/plugins"
  plugin_config_path = "<nri>/nri/conf.d"
`
)
