package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// maxCopy is the largest file that is copied, in bytes. A bundle of certificate authorities has some 200 KB.
const maxCopy = 4 << 20

// follower copies the few files of the host's /etc that the agent reads to a folder, at the start and whenever they change, so that the
// agent's container need not mount the host's /etc. The follower itself runs as an unprivileged user: the files are world-readable, and a
// root process could read the node's secrets in /etc.
type follower struct {
	printer
	from, to  string // from: where the host's root is mounted; to: the folder of the copies
	once      bool
	poll      time.Duration
	lastFault map[string]string // the last fault that was logged for each copy, so that it is logged once
	failing   bool              // a copy could not be written in the last pass
}

// followed is one file to copy: its name in the copies' folder, and the possible sources, of which the first that exists is used.
type followed struct {
	to   string
	from []string
}

// files lists the files to copy. The sources for certificate authorities are the bundle files that Go's crypto/x509 reads (root_linux.go,
// Go 1.25). Go's certificate folders are left out: a bundle has the same authorities, and the folders contain links that point out of
// them.
func files() []followed {
	return []followed{
		{"resolv.conf", []string{"etc/resolv.conf"}},
		{"ssl/certs/ca-certificates.crt", []string{"etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt",
			"etc/ssl/ca-bundle.pem", "etc/pki/tls/cacert.pem", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/ssl/cert.pem"}},
	}
}

// run copies the files once if f.once is set, else until ctx ends. If a file cannot be read, run logs that, keeps the previous copy and
// goes on.
func (f *follower) run(ctx context.Context) error {
	f.lastFault = map[string]string{}
	if f.once {
		return f.pass()
	}
	attempt := func() (time.Duration, error) { return f.attempt(), nil }
	return followFolders(ctx, tick.New(), f.poll, f.say, attempt, filepath.Join(f.from, "etc"), filepath.Join(f.from, "run/systemd/resolve"))
}

// attempt makes a pass, and returns the time until the next. It logs only the first of failures in a row, whose texts differ by the name of
// the temporary file.
func (f *follower) attempt() time.Duration {
	err := f.pass()
	if err != nil && !f.failing {
		f.say("tried again every %s: %v", retryAfter, err)
	}
	if f.failing = err != nil; f.failing {
		return retryAfter
	}
	return f.poll
}

// pass updates every copy that differs from its source. It returns an error only if a copy cannot be written; a source that cannot be
// read is logged.
func (f *follower) pass() error {
	var errs []error
	for _, file := range files() {
		text, from, err := f.read(file.from)
		if err != nil {
			if text := err.Error(); text != f.lastFault[file.to] {
				f.lastFault[file.to] = text
				f.say("%s is not copied: %v", file.to, err)
			}
			continue
		}
		f.lastFault[file.to] = ""
		to := filepath.Join(f.to, file.to)
		if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, text) {
			continue
		}
		if err := place(to, text); err != nil {
			errs = append(errs, err)
			continue
		}
		f.say("copied %s", from)
	}
	return errors.Join(errs...)
}

// place writes a copy. It does not sync it, because the next start writes it again.
func place(to string, text []byte) error {
	o := atomicfile.Options{Mode: 0o644, Folder: true, Pattern: tempPrefix + "*" + tempSuffix}
	if err := atomicfile.Write(to, text, o); err != nil {
		return fmt.Errorf("write the copy: %w", withRemedy(err))
	}
	return nil
}

// read returns the content and the path of the first of the files that exists.
func (f *follower) read(names []string) (text []byte, from string, err error) {
	for _, name := range names {
		text, err = readBelow(f.from, name)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return text, "/" + name, err
		}
	}
	return nil, "", err
}

// readBelow reads the file name with root as the root folder, so that absolute symbolic links resolve below root too (openat2, Linux
// 5.6).
func readBelow(root, name string) ([]byte, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top) //nolint:errcheck // only read from
	fd, err := unix.Openat2(top, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/" + name, Err: err}
	}
	file := os.NewFile(uintptr(fd), "/"+name)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("/%s is not a regular file", name), err)
	}
	return atomicfile.ReadAll(file, maxCopy)
}

// followFolders calls pass at once, at each tick of changed, when something in a folder changes, and when the time that the last call
// returned is over, until ctx ends or pass returns an error. A folder that is made later is watched from the next pass on.
func followFolders(ctx context.Context, changed tick.Chan, poll time.Duration, say func(string, ...any),
	pass func() (next time.Duration, err error), folders ...string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		say("folders are checked every %s only: %v (raise fs.inotify.max_user_instances)", poll, err)
		folders = nil
	} else {
		var sending sync.WaitGroup
		sending.Go(func() { sendChanges(watcher, changed) })
		defer sending.Wait()  // closing an inotify instance takes the kernel some time
		defer watcher.Close() //nolint:errcheck // only read
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			if !tick.Pause(ctx, settle) {
				continue
			}
		case <-next.C:
		}
		for _, f := range folders {
			_ = watcher.Add(f)
		}
		after, err := pass()
		if err != nil {
			return err
		}
		next.Reset(after)
	}
}

// sendChanges sends a tick for each event of the watcher, until it is closed.
func sendChanges(watcher *fsnotify.Watcher, changed tick.Chan) {
	for {
		select {
		case _, open := <-watcher.Events:
			if !open {
				return
			}
		case _, open := <-watcher.Errors: // events were lost, so something happened
			if !open {
				return
			}
		}
		changed.Send()
	}
}
