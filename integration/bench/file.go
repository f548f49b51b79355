package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// save writes the tables, the figures and the picture into a folder.
func (r *report) save(dir string) error {
	var md strings.Builder
	r.markdown(&md)
	if err := os.WriteFile(filepath.Join(dir, "bench.md"), []byte(md.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), data, 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if len(r.Cells) == 0 {
		return nil
	}
	return r.pictures(filepath.Join(dir, "bench.svg"), filepath.Join(dir, "latency.svg"))
}

// encode writes one cell or row a line, so that a change of a figure is a line of a diff.
func (r *report) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	var flat strings.Builder
	deep := 0
	for line := range strings.Lines(string(data)) {
		text := strings.TrimSpace(line)
		opens, closes := strings.HasSuffix(text, "{") || strings.HasSuffix(text, "["), strings.HasPrefix(text, "}") || strings.HasPrefix(text, "]")
		if closes {
			deep--
		}
		if deep >= 3 || closes && deep == 2 {
			flat.WriteString(text)
		} else {
			flat.WriteString(strings.TrimRight(line, "\n"))
		}
		if opens {
			deep++
		}
		if deep < 3 {
			flat.WriteByte('\n')
		}
	}
	return []byte(flat.String()), nil
}

// load reads what encode wrote.
func load(path string) (*report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a result: %w", err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &r, nil
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Where the committed result is, and what is drawn from it, in the repository.
const (
	committedResult = "integration/bench/result.json"
	page            = "docs/project/bench.md"
	pagePicture     = "docs/project/bench.svg"
	pageCurves      = "docs/project/latency.svg"
)

// What stands around the drawn part of the page.
const (
	pageBegin = "<!-- drawn by `make bench-keep` from integration/bench/result.json -->\n"
	pageEnd   = "<!-- end of what is drawn -->"
)

// keep makes the last run's result the committed one, and draws the documents from it.
func keep(root string) error {
	r, err := load(filepath.Join(root, "bin", "bench.json"))
	if err != nil {
		return fmt.Errorf("%w: `make bench` makes it", err)
	}
	if len(r.Rows) == 0 || len(r.Cells) == 0 {
		return fmt.Errorf("bin/bench.json is of a part of the bench; only a whole run is kept")
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, committedResult), data, 0o644); err != nil {
		return fmt.Errorf("keep the result: %w", err)
	}
	if err := r.pictures(filepath.Join(root, pagePicture), filepath.Join(root, pageCurves)); err != nil {
		return err
	}
	path := filepath.Join(root, page)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("draw the page: %w", err)
	}
	drawn, err := r.drawInto(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(drawn), 0o644); err != nil {
		return fmt.Errorf("draw the page: %w", err)
	}
	return nil
}

// drawInto exchanges the drawn part of the page.
func (r *report) drawInto(text string) (string, error) {
	head, rest, ok := strings.Cut(text, pageBegin)
	_, tail, closed := strings.Cut(rest, pageEnd)
	if !ok || !closed {
		return "", fmt.Errorf("%s has no place for the figures: put the lines %q and %q into it", page, strings.TrimSpace(pageBegin), pageEnd)
	}
	return head + pageBegin + r.page() + pageEnd + tail, nil
}
