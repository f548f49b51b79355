package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxLog bounds the log file; one older one is kept beside it. On most nodes that is some ten thousand pods.
const maxLog = 1 << 20

// newLog writes to stderr, which runtimes put into their own log, and to a file. Never to stdout: one stray byte there
// makes the result unreadable and fails the pod. Its folder is made by ADD alone: the DEL of a pod that outlived neardns on
// this node leaves nothing behind.
func newLog(c *Conf, stderr io.Writer, verb string) *slog.Logger {
	w := logWriter{stderr: stderr, path: c.LogFile}
	if _, err := os.Stat(filepath.Dir(w.path)); verb != "add" && errors.Is(err, os.ErrNotExist) {
		w.path = ""
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: c.LogLevel}))
}

// logWriter writes each line whole. A log that cannot be written never fails a call; stderr says so instead.
type logWriter struct {
	stderr io.Writer
	path   string
}

func (w logWriter) Write(line []byte) (int, error) {
	_, _ = w.stderr.Write(line)
	if w.path != "" {
		if err := appendLine(w.path, line, maxLog); err != nil {
			_, _ = fmt.Fprintf(w.stderr, "neardns: log file: %v\n", err)
		}
	}
	return len(line), nil
}

// appendLine adds a line to a file that many processes write at once: one write in append mode each.
func appendLine(path string, line []byte, limit int64) error {
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY | unix.O_NONBLOCK // a pipe in its place must not hold up a pod
	f, err := os.OpenFile(path, flags, 0o640)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			f, err = os.OpenFile(path, flags, 0o640)
		}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Size()+int64(len(line)) > limit {
		rotate(path, f)
		// Whoever rotated, the name now leads to a fresh file.
		if fresh, err := os.OpenFile(path, flags, 0o640); err == nil {
			defer fresh.Close()
			f = fresh
		}
	}
	_, err = f.Write(line)
	return err
}

// rotate moves the file aside, unless another process has just done so: the lock is on the old file, and the name must
// still lead to it.
func rotate(path string, f *os.File) {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	defer func() { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }()
	mine, err1 := f.Stat()
	named, err2 := os.Stat(path)
	if err1 == nil && err2 == nil && os.SameFile(mine, named) {
		_ = os.Rename(path, path+".1")
	}
}
