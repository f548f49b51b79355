package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// release is a release of Debian and the kernel that it has.
type release struct {
	series   string
	codename string
}

// releases are those whose kernels Debian's archive still has, oldest first.
func releases() []release {
	return []release{{"5.10", "bullseye"}, {"6.1", "bookworm"}, {"6.12", "trixie"}}
}

func series() []string {
	var out []string
	for _, r := range releases() {
		out = append(out, r.series)
	}
	return out
}

// kernel is an unpacked kernel package: boot/vmlinuz-RELEASE and lib/modules/RELEASE below dir.
type kernel struct {
	dir     string
	release string // as uname -r prints
	version string // Debian's
}

func (k kernel) image() string      { return filepath.Join(k.dir, "boot", "vmlinuz-"+k.release) }
func (k kernel) modulesDir() string { return filepath.Join(k.dir, "lib", "modules") }

// fetchKernel returns the kernel in dir, fetched and unpacked where it is not there yet.
func fetchKernel(ctx context.Context, dir, series, arch string) (kernel, error) {
	if k, err := findKernel(dir); err == nil {
		return k, nil
	}
	i := slices.IndexFunc(releases(), func(r release) bool { return r.series == series })
	if i < 0 {
		return kernel{}, fmt.Errorf("no kernel %s is known: choose one of %v", series, releases())
	}
	if err := os.RemoveAll(dir); err != nil {
		return kernel{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return kernel{}, err
	}
	fmt.Fprintf(os.Stderr, "fetching Debian's kernel %s (%s) for %s\n", series, releases()[i].codename, arch)
	if err := fetchPackage(ctx, dir, releases()[i].codename, arch); err != nil {
		return kernel{}, fmt.Errorf("fetch kernel %s: %w", series, err)
	}
	return findKernel(dir)
}

// findKernel finds what fetchPackage left. Its last step wrote the file "package".
func findKernel(dir string) (kernel, error) {
	text, err := os.ReadFile(filepath.Join(dir, "package"))
	if err != nil {
		return kernel{}, err
	}
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("%s has %d kernels, want one: remove it", dir, len(images))
	}
	_, version, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(string(text)), ".deb"), "_")
	version, _, _ = strings.Cut(version, "_")
	return kernel{dir: dir, release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"), version: version}, nil
}

// fetchPackage has apt fetch the generic kernel's package of a Debian release, with lists of its own, so that neither the
// machine's sources nor its lists change; apt checks the signatures. Only what a network test may need is unpacked.
func fetchPackage(ctx context.Context, dir, codename, arch string) (err error) {
	work := filepath.Join(dir, "apt")
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, sub), 0o755); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	sites, err := output(ctx, dir, "apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "sources.list"), []byte(sourcesList(sites, codename)), 0o644); err != nil {
		return err
	}
	own := []string{
		"-q", "-o", "APT::Architecture=" + arch, "-o", "Dir::Etc::sourcelist=" + filepath.Join(work, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + filepath.Join(work, "lists"), "-o", "Dir::Cache=" + filepath.Join(work, "cache"),
		"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false", "-o", "APT::Sandbox::User=root",
	}
	if _, err := output(ctx, dir, "apt-get", append(own, "update")...); err != nil {
		return err
	}
	image := "linux-image-" + arch
	depends, err := output(ctx, dir, "apt-cache", append(own, "depends", image)...)
	if err != nil {
		return err
	}
	_, name, found := strings.Cut(depends, "Depends: ")
	if !found {
		return fmt.Errorf("%s of %s depends on no kernel:\n%s", image, codename, depends)
	}
	name, _, _ = strings.Cut(name, "\n")
	if _, err := output(ctx, dir, "apt-get", append(own, "download", strings.TrimSpace(name))...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("%d packages came for %s, want one", len(debs), name)
	}
	return unpack(ctx, dir, debs[0])
}

// sourcesList turns the machine's own Debian archives, from apt's "LABEL URI" lines, into those of another release.
func sourcesList(sites, codename string) string {
	const keys = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	var lines []string
	for line := range strings.Lines(sites) {
		label, uri, _ := strings.Cut(strings.TrimSpace(line), " ")
		suite := map[string]string{"Debian": codename, "Debian-Security": codename + "-security"}[label]
		if source := fmt.Sprintf("deb %s %s %s main", keys, uri, suite); suite != "" && !slices.Contains(lines, source) {
			lines = append(lines, source)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// unpack takes kernel and modules out of the package, has depmod index the modules, and notes that it is done.
func unpack(ctx context.Context, dir, deb string) error {
	const script = `set -eu -o pipefail
dpkg-deb --fsys-tarfile "$1" | tar -x --wildcards -C "$2" './boot/vmlinuz-*' './boot/config-*' '*/modules.*' \
  '*/kernel/net' '*/kernel/lib' '*/kernel/crypto' '*/kernel/arch' '*/kernel/fs' '*/kernel/drivers/net/*.ko*' '*/kernel/drivers/net/*vlan' \
  '*/kernel/drivers/virtio' '*/kernel/drivers/char'
# From trixie on, packages have their modules in /usr.
[ -e "$2/lib" ] || mv "$2/usr/lib" "$2/lib"
set -- "$1" "$2" "$2"/lib/modules/*
depmod -b "$2" "${3##*/}"
rm "$1"
basename "$1" >"$2/package"`
	_, err := output(ctx, dir, "bash", "-c", script, "unpack", deb, dir)
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", name, err, out, errs.String())
	}
	return string(out), nil
}
