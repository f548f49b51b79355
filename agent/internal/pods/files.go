package pods

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
)

// cachedFiles are the pod files as read last.
type cachedFiles struct {
	files   []podfile.File
	changed map[string]struct{} // names of files that may have changed since they were read
	errs    []error             // errors of the files that could not be read
	watched bool                // a watch reports changes, so files are read again only after a change
}

// read returns the pod files, and the errors of those that cannot be read. It reads from disk only what may have changed: all files if
// there is no watch or after Outdate, else the files named by outdateFile. So work on n pods that changes each pod's file reads n files,
// not n².
func (p *Pods) read() ([]podfile.File, []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Clear the marks (stale, changed) before reading, so that a file that changes during the read is read again the next time.
	all, changed := p.stale.Swap(false) || !p.cached.watched, p.cached.changed
	p.cached.changed = nil
	if !all && len(changed) > 0 && !p.update(changed) {
		all = true
	}
	if all {
		p.cached.files, p.cached.errs = podfile.List(p.stateDir)
	}
	return p.cached.files, p.cached.errs
}

// update reads the named files again. It returns false if one of them is unreadable, or any file was at the last read; read then reads all
// files. It makes a new slice and does not change the old one, because callers of read still use that.
func (p *Pods) update(names map[string]struct{}) bool {
	if len(p.cached.errs) > 0 {
		return false
	}
	files := slices.Clone(p.cached.files)
	for name := range names {
		f, err := podfile.Read(filepath.Join(p.dir(), name))
		gone := errors.Is(err, fs.ErrNotExist)
		if err != nil && !gone {
			return false
		}
		at, known := slices.BinarySearchFunc(files, name, func(f podfile.File, name string) int { return cmp.Compare(fileName(f), name) })
		switch {
		case gone && known:
			files = slices.Delete(files, at, at+1)
		case gone:
		case known:
			files[at] = f
		default:
			files = slices.Insert(files, at, f)
		}
	}
	p.cached.files = files
	return true
}

func fileName(f podfile.File) string { return filepath.Base(podfile.Path("", f.ContainerID, f.IfName)) }

// Outdate marks all files as changed, so that the next use reads them again and each Index is rebuilt.
func (p *Pods) Outdate() {
	p.stale.Store(true)
	p.version.Add(1)
}

// outdateFile marks the pod file with this name in the folder as changed, so that the next use reads it again.
func (p *Pods) outdateFile(name string) {
	p.mu.Lock()
	if p.cached.changed == nil {
		p.cached.changed = map[string]struct{}{}
	}
	p.cached.changed[name] = struct{}{}
	p.mu.Unlock()
	p.version.Add(1)
}
