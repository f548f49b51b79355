package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxLog is the size in bytes at which the log file is rotated. One rotated file is kept.
const maxLog = 1 << 20

// maxLogWait is the longest wait for the reader of a full pipe that is in the log file's place.
const maxLogWait = 100 * time.Millisecond

// newLog returns a logger that writes to the log file and to stderr, which runtimes copy into their own log. It never writes to
// stdout, because any extra byte there makes the CNI result unreadable and the pod fail. Only ADD creates the log's folder, so
// that the DEL of a pod that ran longer than neardns leaves no new folder.
func newLog(c *Conf, stderr io.Writer, verb string) *slog.Logger {
	w := logWriter{stderr: stderr, path: c.LogFile}
	if _, err := os.Stat(filepath.Dir(w.path)); verb != "add" && errors.Is(err, os.ErrNotExist) {
		w.path = ""
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: c.LogLevel}))
}

// logWriter writes each log line with one write call. If the log file cannot be written, the call goes on, and stderr gets the
// error.
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

// appendLine adds a line to the log file with one write in append mode, because many processes write to the file at the same
// time.
func appendLine(path string, line []byte, limit int64) error {
	// O_NONBLOCK and the deadline: if the path is a pipe, neither opening it nor its being full may block a pod's start.
	const flags = os.O_CREATE | os.O_APPEND | os.O_WRONLY | unix.O_NONBLOCK
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
		// This process or another one has renamed the file, so open the new file of this name.
		if fresh, err := os.OpenFile(path, flags, 0o640); err == nil {
			defer fresh.Close()
			f = fresh
		}
	}
	_ = f.SetWriteDeadline(time.Now().Add(maxLogWait)) // an error for a regular file, which needs none
	_, err = f.Write(line)
	return err
}

// rotate renames the log file, unless another process has just done so: it locks the open file, and renames only if the path
// still refers to that file.
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
