// Package bundle packs what a bug report needs into one archive, and keeps out of it what is private: secrets, and the names that pods
// ask for. What it takes out and what could not be had stands in a manifest inside the archive.
//
// It is a leaf: it opens no file and looks at no node. It must never let a secret through because a file looks odd; it rather takes
// out too much.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"time"
)

// Folder is what everything in the archive is below, and ManifestName the manifest's name there.
const (
	Folder       = "neardns-report"
	ManifestName = "MANIFEST.txt"
)

// maxFile bounds one file, in bytes. Of a longer one the end is kept: in logs that is what happened last.
const maxFile = 1 << 20

// Bundle is a report in the making. It is used by one goroutine.
type Bundle struct {
	made    time.Time
	version string
	files   []file
	lacks   [][2]string // what is not in it, and why
}

type file struct {
	name string
	text []byte
	out  []string // what was taken out
}

// New begins a report of a program's version.
func New(version string, made time.Time) *Bundle {
	return &Bundle{version: version, made: made.UTC().Truncate(time.Second)}
}

// Add puts a text into the report without its secrets.
func (b *Bundle) Add(name string, text []byte) { b.add(name, text, Secrets) }

// AddLog does so with a log, without the lines that tell what pods ask for.
func (b *Bundle) AddLog(name string, text []byte) { b.add(name, text, Questions, Secrets) }

func (b *Bundle) add(name string, text []byte, cleaners ...func(string) (string, []string)) {
	f := file{name: name}
	if more := len(text) - maxFile; more > 0 {
		text = text[more:]
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest // a cut line may hide the word that tells a secret
		}
		f.out = append(f.out, fmt.Sprintf("its first %d bytes, for its size", more))
	}
	clean := string(text)
	for _, c := range cleaners {
		var out []string
		clean, out = c(clean)
		f.out = append(f.out, out...)
	}
	f.text = []byte(clean)
	b.files = append(b.files, f)
}

// Lacks notes what is not in the report, and why.
func (b *Bundle) Lacks(name, why string) {
	b.lacks = append(b.lacks, [2]string{name, strings.ReplaceAll(why, "\n", "; ")})
}

// Write writes the archive: a gzipped tar with the manifest first.
func (b *Bundle) Write(w io.Writer) error {
	zipped := gzip.NewWriter(w)
	packed := tar.NewWriter(zipped)
	for _, f := range append([]file{{name: ManifestName, text: []byte(b.manifest())}}, b.files...) {
		head := &tar.Header{Name: Folder + "/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: b.made, Format: tar.FormatPAX}
		if err := packed.WriteHeader(head); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := packed.Write(f.text); err != nil {
			return fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if err := packed.Close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	if err := zipped.Close(); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return nil
}

func (b *Bundle) manifest() string {
	var out strings.Builder
	fmt.Fprintf(&out, "A report of neardns-agent %s, made %s.\n", b.version, b.made.Format(time.RFC3339))
	out.WriteString("It names this node's pods and their addresses. Read it before you hand it on.\n\nFiles, and what was taken out of " +
		"each:\n")
	for _, f := range b.files {
		fmt.Fprintf(&out, "  %s (%d bytes)\n", f.name, len(f.text))
		for _, what := range f.out {
			fmt.Fprintf(&out, "    without %s\n", what)
		}
	}
	if len(b.lacks) > 0 {
		out.WriteString("\nNot in it:\n")
		for _, l := range b.lacks {
			fmt.Fprintf(&out, "  %s: %s\n", l[0], l[1])
		}
	}
	return out.String()
}
