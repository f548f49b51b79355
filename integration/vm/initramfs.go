package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Where the guest finds its things in the initramfs.
const (
	configPath  = "/guest.json"
	modulesPath = "/modules"
)

// writeInitramfs writes the guest's first file system: this program, built for the guest, as /init, what to do, and the modules that lead
// to the root folder.
func writeInitramfs(file, init string, k kernel, c guestConfig) (err error) {
	read := func(name string) (string, error) {
		text, err := os.ReadFile(filepath.Join(k.modulesDir(), k.release, name))
		return string(text), err
	}
	dep, err := read("modules.dep")
	if err != nil {
		return err
	}
	builtin, err := read("modules.builtin")
	if err != nil {
		return err
	}
	order, err := moduleOrder(dep, builtin, bootModules())
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffered := bufio.NewWriter(f)
	a := archive{to: buffered}
	for _, dir := range []string{"dev", "proc", "sys", "lower", "upper", "root", "modules"} {
		a.add(dir, cpioDir|0o755, nil)
	}
	for i, module := range order {
		c.Load = append(c.Load, fmt.Sprintf("%s/%02d-%s", modulesPath, i, filepath.Base(module)))
		text, err := read(module)
		if err != nil {
			return err
		}
		a.add(c.Load[i][1:], cpioFile|0o644, []byte(text))
	}
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	a.add("init", cpioFile|0o755, program)
	a.add(configPath[1:], cpioFile|0o644, config)
	return errors.Join(a.close(), buffered.Flush())
}

// archive writes a cpio archive in the "newc" form, the one that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	to    io.Writer
	inode int
	err   error
}

const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	trailer  = "TRAILER!!!"
)

func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	// magic, inode, mode, uid, gid, links, mtime, size, device (4), name's size with its zero, checksum
	a.printf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.printf("%s\x00%s", name, padding(110+len(name)+1))
	a.printf("%s%s", content, padding(len(content)))
}

func (a *archive) close() error {
	a.add(trailer, 0, nil)
	return a.err
}

func (a *archive) printf(format string, args ...any) {
	if a.err == nil {
		_, a.err = fmt.Fprintf(a.to, format, args...)
	}
}

// padding fills up to a multiple of four.
func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }
