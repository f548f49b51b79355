package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// memoryFolder is where the runtime's state is on a real node: a file system in memory.
func memoryFolder() string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return ""
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%v", err)
	}
}

func (b *bench) bin(name string) string { return filepath.Join(b.root, "bin", name) }

func (b *bench) folder(name string) string {
	dir := filepath.Join(b.dir, name)
	b.must(os.MkdirAll(dir, 0o755))
	return dir
}

// long is how long something is measured in one round.
func (b *bench) long(full, short time.Duration) time.Duration {
	if b.short {
		return short
	}
	return full
}

// build compiles a program of the repository as the products are compiled.
func (b *bench) build(path string) string {
	out := filepath.Join(b.dir, filepath.Base(path))
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, path)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("build %s: %v\n%s", path, err, text)
	}
	return out
}

// machine describes where the figures are from.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d CPUs (%s), Linux %s, %s", runtime.NumCPU(), runtime.GOARCH, unix.ByteSliceToString(u.Release[:]), runtime.Version())
}

// tool returns the first line that a program prints about itself.
func (b *bench) tool(args ...string) string {
	if strings.HasPrefix(args[0], "tools/") {
		args[0] = b.bin(args[0])
	}
	out, err := exec.CommandContext(context.Background(), args[0], args[1:]...).Output()
	b.must(err)
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
