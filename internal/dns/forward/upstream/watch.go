package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	poll   = 500 * time.Millisecond // interval of Watch's checks
	settle = 200 * time.Millisecond // time from a changed file to its reading, because an editor writes in several steps
	large  = 1 << 20                // size in bytes of files of which Watch compares size and time only: a geo database has 70 MB
)

// Watch reports changes of files until ctx ends, which closes the channel. A value means that at least one file has changed, appeared or
// vanished; several changes may give one value. It compares contents, because a file may be replaced by rename, be reached through
// symlinks that are swapped (as the kubelet does with a mounted ConfigMap), or be touched without a change. Paths need not exist. A path
// that ends in a slash is a folder, whose list of files is watched.
func Watch(ctx context.Context, paths []string) <-chan struct{} {
	paths = slices.Clone(paths)
	ticks := tick.New()
	last := content(paths) // before returning, so that every later change is noticed
	go func() {
		defer close(ticks)
		for tick.Grid(ctx, poll) {
			if content(paths) == last || !tick.Pause(ctx, settle) {
				continue
			}
			if now := content(paths); now != last {
				last = now
				ticks.Send()
			}
		}
	}()
	return ticks
}

// names returns the files in a folder, except those that the kubelet swaps in a mounted ConfigMap; nil if p does not end in a slash.
func names(p string) []string {
	if !strings.HasSuffix(p, "/") {
		return nil
	}
	entries, _ := os.ReadDir(p) // a missing folder has no files
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			out = append(out, e.Name())
		}
	}
	return out
}

// content returns a hash over the contents of all files and the names in all folders; a missing file counts too.
func content(paths []string) [sha256.Size]byte {
	digest := sha256.New()
	for _, p := range paths {
		size, changed := int64(-1), int64(0)
		if f, err := atomicfile.Open(p, os.O_RDONLY); err == nil {
			if st, err := f.Stat(); err == nil && st.Size() > large {
				size, changed = st.Size(), st.ModTime().UnixNano()
			} else {
				size, _ = io.Copy(digest, f)
			}
			_ = f.Close() // it was only read
		}
		_ = binary.Write(digest, binary.BigEndian, [2]int64{size, changed}) // a hash never fails
		for _, name := range names(p) {
			digest.Write([]byte(name + "\x00"))
		}
	}
	return [sha256.Size]byte(digest.Sum(nil))
}
