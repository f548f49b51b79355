// Package bundle packs the files for a bug report into one archive. It leaves out private data: secrets, and lines of logs with names that
// pods query. A manifest in the archive lists what was left out and what could not be read.
//
// It reads nothing from the node. In doubt whether a text is private, it leaves it out.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// folder is the folder in the archive that has all files, among them the manifest.
const (
	folder       = "neardns-report"
	manifestName = "MANIFEST.txt"
)

// maxFile is the maximum size of one file in bytes. Of a larger file only the end is packed, because the end of a log is the newest part.
const maxFile = 1 << 20

// Bundle collects the files of an archive. One goroutine uses it.
type Bundle struct {
	made    time.Time
	version string
	files   []file
	missing strings.Builder // what could not be read, and why
}

type file struct {
	name string
	text string
	out  []string // descriptions of what was left out
}

// New returns an empty Bundle for a program's version.
func New(version string, made time.Time) *Bundle {
	return &Bundle{version: version, made: made.UTC().Truncate(time.Second)}
}

// Put adds a file, without the secrets in its text. If err is not nil, the manifest instead lists the file as missing, with err as the
// reason.
func (b *Bundle) Put(name string, text []byte, err error) { b.put(name, text, err, withoutSecrets) }

// PutLog adds a log as Put does, and also leaves out lines with names that pods query.
func (b *Bundle) PutLog(name string, text []byte, err error) {
	b.put(name, text, err, withoutQueries, withoutSecrets)
}

func (b *Bundle) put(name string, text []byte, err error, cleaners ...func(string) (string, []string)) {
	if err != nil {
		fmt.Fprintf(&b.missing, "  %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	f := file{name: name}
	if more := len(text) - maxFile; more > 0 {
		text = text[more:]
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest // start at a whole line: a cut one may lack the word that marks a secret
		}
		f.out = append(f.out, fmt.Sprintf("at least its first %d bytes, for its size", more))
	}
	f.text = string(text)
	for _, clean := range cleaners {
		var out []string
		f.text, out = clean(f.text)
		f.out = append(f.out, out...)
	}
	b.files = append(b.files, f)
}

// Save writes the archive to stdout if path is "-", else to that file, which only its owner can read.
func (b *Bundle) Save(stdout io.Writer, path string) error {
	write := func() error { return b.Write(stdout) }
	if path != "-" {
		write = func() error { return atomicfile.Stream(path, atomicfile.Options{Mode: 0o600}, b.Write) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// Write writes the archive as a gzipped tar, with the manifest first.
func (b *Bundle) Write(w io.Writer) error {
	zipped := gzip.NewWriter(w)
	packed := tar.NewWriter(zipped)
	for _, f := range append([]file{{name: manifestName, text: b.manifest()}}, b.files...) {
		head := &tar.Header{Name: folder + "/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: b.made, Format: tar.FormatPAX}
		if err := packed.WriteHeader(head); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := io.WriteString(packed, f.text); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	return errors.Join(packed.Close(), zipped.Close())
}

func (b *Bundle) manifest() string {
	var out strings.Builder
	fmt.Fprintf(&out, "A report of neardns-agent %s, made %s.\n", b.version, b.made.Format(time.RFC3339))
	out.WriteString("It names this node's pods and their addresses. Read it before you pass it on.\n\n" +
		"Files, and what was left out of each:\n")
	for _, f := range b.files {
		fmt.Fprintf(&out, "  %s (%d bytes)\n", f.name, len(f.text))
		for _, what := range f.out {
			fmt.Fprintf(&out, "    without %s\n", what)
		}
	}
	if b.missing.Len() > 0 {
		out.WriteString("\nNot in it:\n" + b.missing.String())
	}
	return out.String()
}
