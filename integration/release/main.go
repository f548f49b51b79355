// Command release makes what people take of a version: programs, images, manifests, and the lists of what is inside, all of one commit.
//
//	release -version v0.1.0 -out dist
//	release -version v0.1.0 -out dist -push registry.example/dns
//
// It builds in a clone of HEAD that has the version as its tag, so that the programs' own build information names the version, and
// nothing that was not committed gets in. Two runs on one commit make the same bytes, as long as Debian's packages are the same:
// each time stamp is the commit's. It must be root: it makes Debian's base for each architecture, and where the kernel has no
// interpreter for one, it registers QEMU's for as long as it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// architectures are Go's names, which are also Debian's and those of OCI.
var architectures = []string{"amd64", "arm64"}

// version is a semantic version 2.0.0 with Go's v before it, without build metadata: a tag of an image may have no plus sign.
var version = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// release is one run.
type release struct {
	version string
	out     string // where the files go
	work    string // a folder that is this run's own
	src     string // the clone
	clock   int64  // the commit's time, in seconds since 1970
	log     *slog.Logger
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	r := release{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var parts, to string
	var insecure bool
	flag.StringVar(&r.version, "version", "", "the version, such as v0.1.0")
	flag.StringVar(&r.out, "out", "dist", "the folder to make; it must not be there")
	flag.StringVar(&parts, "parts", "programs,images,manifests,lists", "what to make; lists are of what else was made")
	flag.StringVar(&to, "push", "", "copy the images of the release in -out to this registry, and write their names into -out")
	flag.BoolVar(&insecure, "insecure", false, "the registry has no TLS")
	flag.Parse()
	err := r.run(ctx, strings.Split(parts, ","), to, insecure)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r *release) run(ctx context.Context, parts []string, to string, insecure bool) (err error) {
	if !version.MatchString(r.version) {
		return fmt.Errorf("version %q is none: name one such as v0.1.0 or v0.2.0-rc.1", r.version)
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if to != "" {
		return r.push(ctx, to, insecure)
	}
	if _, err := os.Lstat(r.out); err == nil {
		return fmt.Errorf("%s is there already: remove it, or name another folder", r.out)
	}
	if r.work, err = os.MkdirTemp("", "neardns-release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if err := r.clone(ctx); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	made := filepath.Join(r.work, "dist") // moved when it is whole
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	all := map[string]func(context.Context, string) error{
		"programs": r.programs, "images": r.images, "manifests": r.manifests, "lists": r.lists,
	}
	for _, part := range parts {
		make, ok := all[part]
		if !ok {
			return fmt.Errorf("part %q is none: name some of programs, images, manifests, lists", part)
		}
		r.log.Info("make", "part", part)
		if err := make(ctx, made); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	if err := sums(made); err != nil {
		return fmt.Errorf("sums: %w", err)
	}
	return copyTree(made, r.out)
}

// command runs a program in a folder; what it printed is part of the error.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.String(), complaint.String())
	}
	return strings.TrimSpace(out.String()), nil
}
