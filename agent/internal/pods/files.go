package pods

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
)

// cachedFiles are the pod files as they were last read.
type cachedFiles struct {
	files   []podfile.File
	changed map[string]struct{} // names of files that changed since
	errs    []error             // of the last reading
	folder  stamp
	watched bool // a watch reports changes, so files are read again only then
}

// read returns the files, and the errors of those that could not be read. It reads again what may have changed: all files without a watch
// or after Outdate, else those that outdateFile named. So the work on n pods, each of which changes its file, reads n files and not n².
func (p *Pods) read() ([]podfile.File, []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Cleared before reading: what changes meanwhile is read the next time. Only a watch and this process set these.
	all, changed := p.stale.Swap(false) || !p.cached.watched, p.cached.changed
	p.cached.changed = nil
	if !all && len(changed) > 0 && !p.update(changed) {
		all = true
	}
	if all {
		p.cached.folder = p.cached.folder.next(p.dir(), time.Now())
		p.cached.files, p.cached.errs = podfile.List(p.stateDir)
	}
	return p.cached.files, p.cached.errs
}

// update reads single files again. It returns false if a file is unreadable, or was: then all are to be read. Callers hold the old slice,
// so it stays as it is.
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

// Outdate marks all files as changed, so that the next use reads them and rebuilds each Index.
func (p *Pods) Outdate() {
	p.stale.Store(true)
	p.version.Add(1)
}

// outdateFile is Outdate for one file of the folder.
func (p *Pods) outdateFile(name string) {
	p.mu.Lock()
	if p.cached.changed == nil {
		p.cached.changed = map[string]struct{}{}
	}
	p.cached.changed[name] = struct{}{}
	p.mu.Unlock()
	p.version.Add(1)
}
