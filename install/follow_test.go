package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// The node's resolv.conf may be a file or a link, and is changed in several ways: the copy follows before the next poll. If it cannot be
// read, the previous copy stays, and the fault is logged once.
func TestFollow(t *testing.T) {
	testutil.RequireRoot(t) // it watches real files
	root, to := t.TempDir(), t.TempDir()
	etc, resolved := filepath.Join(root, "etc"), filepath.Join(root, "run/systemd/resolve")
	write := func(path, text string) {
		t.Helper()
		testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	link := func(target string) {
		t.Helper()
		temp := filepath.Join(etc, "new")
		testutil.Must(t, errors.Join(os.Symlink(target, temp), os.Rename(temp, filepath.Join(etc, "resolv.conf"))))
	}
	wantCopy := func(what, file, want string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			got, err := os.ReadFile(filepath.Join(to, file))
			return testutil.ErrorIf(string(got) != want, "%s: the copy is %q (%w), want %q", what, got, err, want)
		})
	}
	write(filepath.Join(etc, "resolv.conf"), "nameserver 192.0.2.1\n")
	write(filepath.Join(etc, "shadow"), "root:secret\n")
	write(filepath.Join(resolved, "stub-resolv.conf"), "nameserver 127.0.0.53\n")
	(&node{t: t}).run(0, "follow", "--from", root, "--to", to, "--once")
	testutil.Equal(t, "the copy", "nameserver 192.0.2.1\n", testutil.ReadFile(t, filepath.Join(to, "resolv.conf")))

	out := new(testutil.Output)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"follow", "--from", root, "--to", to, "--poll", "1h"}, out, out) }()
	eventuallySays(t, out, "ssl/certs/ca-certificates.crt is not copied")
	write(filepath.Join(etc, "resolv.conf"), "nameserver 192.0.2.2\n")
	wantCopy("in place", "resolv.conf", "nameserver 192.0.2.2\n")
	write(filepath.Join(etc, "resolv.tmp"), "nameserver 192.0.2.3\n")
	testutil.Must(t, os.Rename(filepath.Join(etc, "resolv.tmp"), filepath.Join(etc, "resolv.conf")))
	wantCopy("by a rename", "resolv.conf", "nameserver 192.0.2.3\n")
	link("../run/systemd/resolve/stub-resolv.conf")
	wantCopy("a link", "resolv.conf", "nameserver 127.0.0.53\n")
	link("/run/systemd/resolve/resolv.conf") // leads to the node's, not to this machine's
	eventuallySays(t, out, "resolv.conf is not copied: open /etc/resolv.conf")
	write(filepath.Join(resolved, "resolv.conf"), "nameserver 192.0.2.4\n")
	wantCopy("behind a link with a whole path", "resolv.conf", "nameserver 192.0.2.4\n")
	link("../../../../../../etc/hostname")
	testutil.Eventually(t, func() error { // it was logged before, about the other link
		n := strings.Count(out.String(), "resolv.conf is not copied: open /etc/resolv.conf: no such file")
		return testutil.ErrorIf(n < 2, "logged %d times, want two:\n%s", n, out)
	})
	wantCopy("a link that leads nowhere", "resolv.conf", "nameserver 192.0.2.4\n")
	write(filepath.Join(etc, "pki/ca-trust/extracted/pem/tls-ca-bundle.pem"), "certificates\n")
	testutil.Must(t, os.MkdirAll(filepath.Join(etc, "pki/tls/certs"), 0o755))
	testutil.Must(t, os.Symlink("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", filepath.Join(etc, "pki/tls/certs/ca-bundle.crt")))
	write(filepath.Join(etc, "seen"), "")
	wantCopy("certificate authorities by a link", "ssl/certs/ca-certificates.crt", "certificates\n")
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 2 {
		t.Errorf("the copies' folder holds %v, %v", entries, err)
	}
	if strings.Contains(out.String(), "secret") {
		t.Error("it reads what it should not")
	}
}

// If a copy repeatedly cannot be written, that is logged once. It is logged again if it fails after a success.
func TestFollowLogsOnce(t *testing.T) {
	root, to, out := t.TempDir(), filepath.Join(t.TempDir(), "copies"), new(testutil.Output)
	testutil.Must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644))
	f := &follower{from: root, to: to, poll: time.Hour, printer: printer{out}, lastFault: map[string]string{}}
	attempt := func(after time.Duration, logged int) {
		t.Helper()
		for range 2 {
			if got := f.attempt(); got != after {
				t.Errorf("the next attempt is in %s, want %s", got, after)
			}
		}
		if n := strings.Count(out.String(), "tried again"); n != logged {
			t.Errorf("logged %d times, want %d:\n%s", n, logged, out)
		}
	}
	testutil.Must(t, os.WriteFile(to, nil, 0o644)) // a file is in the folder's place
	attempt(retryAfter, 1)
	testutil.Must(t, os.Remove(to))
	attempt(f.poll, 1)
	testutil.Must(t, os.RemoveAll(to))
	testutil.Must(t, os.WriteFile(to, nil, 0o644))
	attempt(retryAfter, 2)
}
