package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/image"
)

// packages are Debian's, of which the suite's images are made: a shell with what its scripts call, dig, nc and wget. They are
// unpacked, not installed: small, since the runtime copies them for each container.
const packages = "base-files,bind9-dnsutils,busybox,coreutils,dash,grep,hostname,libc-bin,netcat-openbsd,wget"

// root makes the files that the suite's images have in common, once, as an archive.
func root(ctx context.Context, bin string) (string, error) {
	archive := filepath.Join(bin, "images", "conformance.tar")
	if _, err := os.Stat(archive); !errors.Is(err, fs.ErrNotExist) {
		return archive, err
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return "", err
	}
	// nc is a link that the package makes when it is installed.
	out, err := exec.CommandContext(ctx, "mmdebstrap", "--format=tar", "--variant=extract", "--include="+packages,
		`--extract-hook=ln -s nc.openbsd "$1/bin/nc"`, `--aptopt=Apt::Install-Recommends "false"`,
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"bookworm", archive+".new").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make the images' root by mmdebstrap: %w\n%s", err, out)
	}
	return archive, os.Rename(archive+".new", archive)
}

// images are those that the suite's DNS tests need, by the names that it uses.
func images(ctx context.Context, n *node.Node, base string) ([]image.Image, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(n.Kubernetes, "e2e.test"), "-list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the suite for its images: %w", err)
	}
	return called(strings.Fields(string(out)), n, base)
}

// called makes an image for each name.
func called(names []string, n *node.Node, base string) ([]image.Image, error) {
	// CoreDNS lies next to agnhost, too, as the server that tests put in the place of the cluster's.
	server := filepath.Join(n.Bin, "tools/coredns")
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var out []image.Image
	for _, name := range names {
		i := image.Image{Name: name, Base: base, Env: env}
		switch short, _, _ := strings.Cut(path.Base(name), ":"); short {
		case "agnhost":
			i.Files = map[string]string{"agnhost": filepath.Join(n.Kubernetes, "agnhost"), "coredns": server}
			i.Entrypoint, i.Cmd = []string{"/agnhost"}, []string{"pause"}
		case "glibc-dns-testing":
			i.Files = map[string]string{"coredns": server}
		case "busybox":
			i.Cmd = []string{"sh"}
		case "pause":
			i.Base, i.Files, i.Entrypoint, i.Cmd = "", map[string]string{"pause": filepath.Join(n.Bin, "tools/podimage")}, []string{"/pause"}, []string{"pause"}
		default:
			return nil, fmt.Errorf("the suite asks for an image that nobody makes here: %s", name)
		}
		out = append(out, i)
	}
	return out, nil
}
