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

// maxLog is the size in bytes at which the log file is rotated; one older file is kept. It holds about ten thousand pods.
const maxLog = 1 << 20

// newLog returns a logger to stderr, which runtimes copy into their own log, and to a file. It never writes to stdout, where one stray
// byte makes the result unreadable and fails the pod. Only ADD makes the file's folder, so that the DEL of a pod that outlived neardns on
// this node leaves nothing behind.
func newLog(c *Conf, stderr io.Writer, verb string) *slog.Logger {
	w := logWriter{stderr: stderr, path: c.LogFile}
	if _, err := os.Stat(filepath.Dir(w.path)); verb != "add" && errors.Is(err, os.ErrNotExist) {
		w.path = ""
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: c.LogLevel}))
}

// logWriter writes each line with one write. A log that cannot be written never fails a call; stderr has the error instead.
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

// appendLine adds a line to a file that many processes write at the same time, with one write in append mode.
func appendLine(path string, line []byte, limit int64) error {
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY | unix.O_NONBLOCK // a pipe at this path must not block a pod's start
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
		// This process or another one has rotated, so the name refers to a new file.
		if fresh, err := os.OpenFile(path, flags, 0o640); err == nil {
			defer fresh.Close()
			f = fresh
		}
	}
	_, err = f.Write(line)
	return err
}

// rotate renames the file unless another process has just done so: it locks the old file, and checks that the name still refers to it.
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
