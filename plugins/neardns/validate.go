package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

const usage = `usage: neardns validate FILE

neardns is a CNI plugin; container runtimes call it. By hand it checks a network configuration list:
  neardns validate /etc/cni/net.d/10-pods.conflist
Exit status: 0 good, 1 faults were printed, 2 wrong usage.
`

// cli is what a person gets who runs the binary with arguments.
func cli(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) == 2 && args[0] == "validate":
		return validate(args[1], stdout, stderr)
	case len(args) == 1 && (args[0] == "version" || args[0] == "--version"):
		_, _ = fmt.Fprintln(stdout, buildVersion())
		return 0
	case len(args) == 1 && (args[0] == "help" || args[0] == "--help" || args[0] == "-h"):
		_, _ = io.WriteString(stdout, usage)
		return 0
	}
	_, _ = io.WriteString(stderr, usage)
	return 2
}

// validate checks one file and prints each fault with its line.
func validate(path string, stdout, stderr io.Writer) int {
	data, err := os.ReadFile(path)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%v: name a readable conflist\n", err)
		return 1
	}
	lines, err := locate(data)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s:%d: not valid JSON: %v\n", path, lineAt(data, errorOffset(err, len(data))), err)
		return 1
	}
	report := checkList(data)
	for _, w := range report.Warnings {
		_, _ = fmt.Fprintf(stderr, "%s:%d: warning: %s\n", path, lines.of(w.Field), w)
	}
	slices.SortStableFunc(report.Faults, func(a, b *strict.Fault) int { return lines.of(a.Field) - lines.of(b.Field) })
	for _, f := range report.Faults {
		_, _ = fmt.Fprintf(stderr, "%s:%d: %s\n", path, lines.of(f.Field), f)
	}
	if len(report.Faults) > 0 {
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "%s: good: %s\n", path, report.Summary)
	return 0
}

// report is what was found in a list.
type report struct {
	Faults, Warnings []*strict.Fault
	Summary          string
}

func (r *report) fault(field, format string, args ...any) {
	r.Faults = append(r.Faults, &strict.Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// checkList judges a conflist, or a drop-in file that holds our entry alone.
func checkList(data []byte) report {
	var r report
	var list struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Type       string            `json:"type"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		field, is := "", "another type"
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			field, is = wrong.Field, wrong.Value
		}
		r.fault(field, "not as in a network configuration list, but %s: write an object with cniVersion, name and plugins", is)
		return r
	}
	if list.Plugins == nil && list.Type == "neardns" {
		conf := r.entry("", data)
		r.Summary = "a drop-in entry; " + redirectsOf(conf)
		return r
	}
	if list.Name == "" {
		r.fault("name", "missing: a network has a name, which must stay the same over changes")
	}
	if supported := version.VersionsStartingFrom("0.3.1").SupportedVersions(); !slices.Contains(supported, list.CNIVersion) {
		r.fault("cniVersion", "%q is not supported: write one of %s", list.CNIVersion, strings.Join(supported, ", "))
	}
	at := -1
	var conf *Conf
	for i, raw := range list.Plugins {
		var entry struct {
			Type string `json:"type"`
		}
		field := fmt.Sprintf("plugins[%d]", i)
		if json.Unmarshal(raw, &entry) != nil || entry.Type == "" {
			r.fault(field, "no type: each plugin is an object whose type names its binary")
			continue
		}
		if entry.Type != "neardns" {
			continue
		}
		switch {
		case at >= 0:
			r.fault(field, "a second neardns entry: keep one")
		case i == 0:
			r.fault(field, "neardns is first: put it behind the plugin that makes the pod's interface")
		}
		at = i
		conf = r.entry(field+".", raw)
	}
	if at < 0 {
		r.fault("plugins", `no neardns entry: append {"type": "neardns", "redirects": ["10.96.0.10"]} with your cluster DNS address`)
		return r
	}
	r.Summary = fmt.Sprintf("neardns is plugin %d of %d in network %q; %s", at+1, len(list.Plugins), list.Name, redirectsOf(conf))
	return r
}

// entry judges our entry; prefix is its place in the file.
func (r *report) entry(prefix string, raw json.RawMessage) *Conf {
	conf, err := parseConf(raw)
	faults := conf.Unknown
	var ce *confError
	if errors.As(err, &ce) {
		faults = ce.Faults // the unknown ones among them
	}
	for _, f := range faults {
		r.fault(prefix+f.Field, "%s", f.Message)
	}
	var asks struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	_ = json.Unmarshal(raw, &asks)
	for _, c := range []struct{ key, effect string }{
		{"dns", "pods with nameservers of their own are not told from others"},
		{keyAnnotations, "pods cannot opt out by annotation " + overlay.AnnotationSteer},
	} {
		if !asks.Capabilities[c.key] {
			message := fmt.Sprintf(`does not ask for %q: %s; add "%s": true`, c.key, c.effect, c.key)
			r.Warnings = append(r.Warnings, &strict.Fault{Field: prefix + "capabilities", Message: message})
		}
	}
	return conf
}

func redirectsOf(c *Conf) string {
	var parts []string
	for _, x := range c.Redirects {
		parts = append(parts, x.String())
	}
	return fmt.Sprintf("redirects %s, steer %s, table inet %s", strings.Join(parts, " "), c.Steer, steer.TableName)
}

// lineMap knows on which line each value of a file begins, by paths like plugins[1].redirects[0].
type lineMap map[string]int

// of finds the line of a field, or of the nearest thing around it that exists.
func (m lineMap) of(field string) int {
	for field != "" {
		if line, ok := m[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 1
}

// locate walks a JSON text once and notes where its values are.
func locate(data []byte) (lineMap, error) {
	m := lineMap{}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := m.walk(d, data, ""); errors.Is(err, io.EOF) {
		return nil, &placeError{int64(len(data)), "the text ends too early"}
	} else if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &placeError{d.InputOffset(), "something follows the end of the list: take it out"}
	}
	return m, nil
}

func (m lineMap) walk(d *json.Decoder, data []byte, path string) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	// The decoder stands behind the token; for what opens a value that is on its first line, for the rest on its only one.
	if m[path] == 0 {
		m[path] = lineAt(data, d.InputOffset())
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	for i := 0; d.More(); i++ {
		sub := fmt.Sprintf("%s[%d]", path, i)
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			sub = strings.TrimPrefix(fmt.Sprintf("%s.%v", path, key), ".")
			if m[sub] != 0 {
				return &placeError{d.InputOffset(), fmt.Sprintf("key %q stands twice: keep one", key)}
			}
			m[sub] = lineAt(data, d.InputOffset())
		}
		if err := m.walk(d, data, sub); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(int(offset), 0), len(data))], []byte("\n"))
}

// placeError is a fault of the text itself.
type placeError struct {
	offset int64
	msg    string
}

func (e *placeError) Error() string { return e.msg }

// errorOffset finds where a JSON error is; an unexpected end is at the end.
func errorOffset(err error, size int) int64 {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Offset
	}
	var place *placeError
	if errors.As(err, &place) {
		return place.offset
	}
	return int64(size)
}
