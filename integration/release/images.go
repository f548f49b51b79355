package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// image is one of the images, which hold each architecture under one name.
type image struct {
	name, tag, dockerfile, target string
}

// archive is the name of the image's file.
func (i image) archive() string { return fmt.Sprintf("%s-%s.oci.tar", i.name, i.tag) }

func (r *release) list() []image {
	return []image{
		{"neardns-plugin", r.version, "Dockerfile.plugin", ""},
		{"neardns-agent", r.version, "Dockerfile.agent", "agent"},
		{"neardns-agent", r.version + "-slim", "Dockerfile.agent", "slim"},
		{"neardns-controller", r.version, "fleet/Dockerfile", "controller"},
		{"neardns-edge", r.version, "fleet/Dockerfile", "edge"},
	}
}

// images makes an OCI archive of each image. The engine has a store of this run's own.
func (r *release) images(ctx context.Context, out string) (err error) {
	store := filepath.Join(r.work, "store")
	engine := []string{"podman", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--tmpdir", filepath.Join(store, "tmp"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"}
	podman := func(args ...string) error {
		args = slices.Concat(engine[1:], args)
		_, err := command(ctx, r.src, nil, engine[0], args...)
		return err
	}
	for _, arch := range architectures {
		if err := r.build(ctx, arch); err != nil {
			return err
		}
		quit, err := emulate(arch)
		if err != nil {
			return err
		}
		err = r.base(ctx, arch)
		if err == nil {
			err = podman("import", "--arch", arch, r.basePath(arch), "localhost/base:"+arch)
		}
		if err == nil {
			err = r.buildImages(arch, podman)
		}
		if err := errors.Join(err, quit()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(r.work, "oci"), 0o755); err != nil {
		return err
	}
	for _, i := range r.list() {
		name := "localhost/" + i.name + ":" + i.tag
		layout := filepath.Join(r.work, "oci", i.name+"-"+i.tag)
		if err := podman("manifest", "push", "-q", "--all", name, "oci:"+layout+":"+i.tag); err != nil {
			return err
		}
		if err := nameLayout(layout, i); err != nil {
			return err
		}
		if err := r.packLayout(filepath.Join(out, i.archive()), layout); err != nil {
			return err
		}
	}
	return nil
}

// buildImages builds the images of one architecture of its programs, and adds each to the list of its name.
func (r *release) buildImages(arch string, podman func(...string) error) error {
	bin := filepath.Join(r.src, "bin")
	if err := os.RemoveAll(bin); err != nil {
		return err
	}
	if err := os.CopyFS(bin, os.DirFS(r.bin(arch))); err != nil {
		return err
	}
	for _, i := range r.list() {
		args := []string{"build", "-q", "--network=none", "--platform=linux/" + arch, "--timestamp=" + strconv.FormatInt(r.clock, 10),
			"--build-arg=BASE=localhost/base:" + arch, "--build-arg=BUILDER=localhost/base:" + arch, "--identity-label=false",
			"--manifest=localhost/" + i.name + ":" + i.tag, "--file=" + i.dockerfile, "--target=" + i.target}
		for _, l := range []string{"version=" + strings.TrimPrefix(r.version, "v"), "title=" + i.name, "source=https://github.com/neardns/neardns", "licenses=Apache-2.0"} {
			args = append(args, "--label=org.opencontainers.image."+l)
		}
		if i.target == "" {
			args = slices.DeleteFunc(args, func(a string) bool { return a == "--target=" })
		}
		if err := podman(append(args, ".")...); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) basePath(arch string) string { return filepath.Join(r.work, "base-"+arch+".tar") }

// base makes Debian's base of an architecture, as integration/tools/images does.
func (r *release) base(ctx context.Context, arch string) error {
	_, err := command(ctx, r.src, nil, "integration/tools/base", arch, r.basePath(arch))
	return err
}

// packLayout packs an OCI image layout: its files are named by their content, so their order and their times are all that could differ.
func (r *release) packLayout(path, layout string) error {
	files := map[string]string{}
	err := filepath.WalkDir(layout, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		under, err := filepath.Rel(layout, p)
		files[under] = p
		return err
	})
	if err != nil {
		return err
	}
	return write(path, func(w io.Writer) error { return r.tar(w, files) })
}
