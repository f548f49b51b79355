package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/version"
)

const usage = `usage: neardns validate FILE

neardns is a CNI plugin; container runtimes call it. By hand it checks a network configuration list:
  neardns validate /etc/cni/net.d/10-pods.conflist
Exit codes: 0 good, 2 faults in the file or wrong usage.
`

// badInput is the exit code for bad input, as in neardns's other programs.
const badInput = 2

// cli runs the binary as a command for a person, without a CNI call. It returns the exit code.
func cli(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) > 0 && isHelp(args[len(args)-1]), len(args) > 0 && isHelp(args[0]):
		_, _ = io.WriteString(stdout, usage)
		return 0
	case len(args) == 2 && args[0] == "validate":
		return validate(args[1], stdout, stderr)
	case len(args) == 1 && (args[0] == "version" || args[0] == "--version"):
		_, _ = fmt.Fprintln(stdout, version.String())
		return 0
	}
	_, _ = io.WriteString(stderr, usage)
	return badInput
}

func isHelp(arg string) bool { return arg == "help" || arg == "--help" || arg == "-h" }

// validate checks a conflist, prints each fault with its line, and returns the exit code.
func validate(path string, stdout, stderr io.Writer) int {
	data, err := os.ReadFile(path)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%v: name a readable conflist\n", err)
		return badInput
	}
	top, err := strict.JSON(path, "", data)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s:%d: not valid JSON: %v\n", path, strict.ErrorLine(data, err), err)
		return badInput
	}
	report, lines := checkList(data), lineMap{}
	faults := lines.locate(top)
	for _, f := range report.Faults {
		f.Place = strict.Place{File: path, Line: lines.of(f.Field)}
		faults = append(faults, f)
	}
	for _, w := range report.Warnings {
		_, _ = fmt.Fprintf(stderr, "%s:%d: warning: %s\n", path, lines.of(w.Field), w)
	}
	slices.SortStableFunc(faults, func(a, b *strict.Fault) int { return a.Line - b.Line })
	for _, f := range faults {
		_, _ = fmt.Fprintln(stderr, f)
	}
	if len(faults) > 0 {
		return badInput
	}
	_, _ = fmt.Fprintf(stdout, "%s: good: %s\n", path, report.Summary)
	return 0
}

// report has the findings about a list.
type report struct {
	Faults, Warnings []*strict.Fault
	Summary          string
}

func (r *report) fault(field, format string, args ...any) {
	r.Faults = append(r.Faults, &strict.Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// checkList checks the JSON of a conflist, or of a drop-in file that has only the neardns entry.
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
		r.fault(field, "%s is the wrong type in a network configuration list: write an object with cniVersion, name and plugins", is)
		return r
	}
	if list.Plugins == nil && list.Type == "neardns" {
		conf := r.entry("", data)
		r.Summary = "a drop-in entry; " + redirectsOf(conf)
		return r
	}
	if list.Name == "" {
		r.fault("name", "missing: a network needs a name that does not change")
	}
	if supported := cniversion.VersionsStartingFrom("0.3.1").SupportedVersions(); !slices.Contains(supported, list.CNIVersion) {
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
			r.fault(field, "neardns is first: put it after the plugin that makes the pod's interface")
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

// entry checks the neardns entry of a conflist. prefix is the entry's path in the file, for error messages.
func (r *report) entry(prefix string, raw json.RawMessage) *Conf {
	conf, err := parseConf(raw)
	faults := conf.Unknown
	var ce *confError
	if errors.As(err, &ce) {
		faults = ce.Faults // includes the unknown keys
	}
	for _, f := range faults {
		r.fault(prefix+f.Field, "%s", f.Message)
	}
	if top, err := strict.JSON("", "", raw); err == nil && len(faults) == 0 {
		if dns, ok := top.Map()[keyDNS]; ok {
			for _, w := range overlay.Warnings(dns, conf.Rules, steer.ClusterDNS(conf.Redirects), conf.ClusterDomain) {
				r.Warnings = append(r.Warnings, &strict.Fault{Field: prefix + w.Field, Message: w.Message})
			}
		}
	}
	var asks struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	_ = json.Unmarshal(raw, &asks)
	for _, c := range []struct{ key, effect string }{
		{"dns", "pods with their own nameservers may not be recognized"},
		{keyAnnotations, "pods cannot opt out by annotation " + overlay.AnnotationSteer},
	} {
		if !asks.Capabilities[c.key] {
			message := fmt.Sprintf(`%q is missing: %s; add "%s": true`, c.key, c.effect, c.key)
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
	return fmt.Sprintf("redirects %s, steer %s, backend %s", strings.Join(parts, " "), c.Steer, c.Backend)
}
