package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/neardns/neardns/pkg/conflist"
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

// validate checks a conflist, prints each fault with its field, and returns the exit code.
func validate(path string, stdout, stderr io.Writer) int {
	data, err := os.ReadFile(path)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%v: name a readable conflist\n", err)
		return badInput
	}
	r := checkList(data)
	for _, w := range r.Warnings {
		_, _ = fmt.Fprintf(stderr, "%s: warning: %s\n", path, w)
	}
	for _, f := range r.Faults {
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", path, f)
	}
	if len(r.Faults) > 0 {
		return badInput
	}
	_, _ = fmt.Fprintf(stdout, "%s: good\n", path)
	return 0
}

// report has the findings about a list, each with its field.
type report struct{ Faults, Warnings []string }

func (r *report) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

func (r *report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// checkList checks the JSON of a conflist, or of a drop-in file that has only the neardns entry.
func checkList(data []byte) (r report) {
	top, _ := strict.JSON("", "", data) // conflist.Read returns the error
	keys := top.Map()
	if _, isList := keys["plugins"]; !isList && keys["type"].Text == conflist.Type {
		r.entry("", data)
		return r
	}
	list, err := conflist.Read(data)
	if err != nil {
		r.fault("%v", err)
		return r
	}
	if err := list.CheckVersion(conflist.Versions()); err != nil {
		r.fault("%v", err)
	}
	found := false
	for i, p := range keys["plugins"].Items() {
		switch {
		case list.Types[i] != conflist.Type:
			continue
		case found:
			r.fault("%s: a second neardns entry: keep one", p.Field)
		case i == 0:
			r.fault("%s: neardns is first: put it after the plugin that makes the pod's interface", p.Field)
		}
		found = true
		r.entry(p.Field+".", p.Raw())
	}
	if !found {
		r.fault(`plugins: no neardns entry: append {"type": "neardns", "redirects": ["10.96.0.10"]} with your cluster DNS address`)
	}
	return r
}

// entry checks the neardns entry of a conflist. prefix is the entry's path in the file.
func (r *report) entry(prefix string, raw json.RawMessage) {
	conf, err := parseConf(raw)
	faults := conf.Unknown
	if ce := (*confError)(nil); errors.As(err, &ce) {
		faults = ce.Faults // includes the unknown keys
	}
	top, err := strict.JSON("", "", raw)
	if err == nil {
		var keys strict.Reader
		keys.Plain(top) // a call takes the last of two equal keys, as runtimes do
		faults = append(faults, keys.Faults()...)
	}
	for _, f := range faults {
		r.fault("%s%s", prefix, f)
	}
	if err == nil && len(faults) == 0 {
		for _, w := range overlay.Warnings(top.Map()[keyDNS], conf.Rules, steer.ClusterDNS(conf.Redirects), conf.ClusterDomain) {
			r.warn("%s%s", prefix, w)
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
			r.warn(`%scapabilities: %q is missing: %s; add "%s": true`, prefix, c.key, c.effect, c.key)
		}
	}
}
