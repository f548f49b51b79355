package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// Output is the flag -o of a command that can print its result as text, JSON or YAML. The flag --json is short for -o json.
type Output struct {
	format string // "" for text, "json", "yaml" or one of the extra formats
	known  []string
	json   bool // --json is set
}

// OutputFlag adds the flags -o and --json to c. extra are formats that only this command has.
func OutputFlag(c *cobra.Command, extra ...string) *Output {
	o := &Output{known: append([]string{"json", "yaml"}, extra...)}
	c.Flags().VarP(o, "output", "o", "print it as `FORMAT`: "+strings.Join(o.known, ", ")+"; default: text")
	c.Flags().BoolFunc("json", "the same as -o json", func(text string) (err error) {
		if o.json, err = strconv.ParseBool(text); err == nil && o.json {
			err = o.conflict(o.format)
			o.format = "json"
		}
		return err
	})
	return o
}

// String returns the chosen format: "" for text, "json", "yaml" or one of the extra formats.
func (o *Output) String() string { return o.format }

// Type implements pflag.Value.
func (*Output) Type() string { return "format" }

// Set implements pflag.Value. The empty format is text, as without the flag.
func (o *Output) Set(format string) error {
	if format != "" && !slices.Contains(o.known, format) {
		return errors.New("write " + strings.Join(o.known, ", "))
	} else if o.json {
		return o.conflict(format)
	}
	o.format = format
	return nil
}

// conflict returns an error if -o names another format than --json.
func (*Output) conflict(format string) error {
	if format == "" || format == "json" {
		return nil
	}
	return fmt.Errorf("-o %s and --json are set: use one of them", format)
}

// Report prints v or text as Print does, and returns an error with the exit code Degraded unless good.
func (o *Output) Report(w io.Writer, v any, text func() string, good bool) error {
	if err := o.Print(w, v, text); err != nil || good {
		return err
	}
	return &ExitError{Code: Degraded}
}

// Print prints v as JSON or YAML if that is the chosen format, and else what text returns.
func (o *Output) Print(w io.Writer, v any, text func() string) error {
	switch o.format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case "yaml":
		text, err := json.Marshal(v) // through JSON, so that the keys are the same
		if err != nil {
			return err
		}
		out, err := yaml.JSONToYAML(text)
		if err != nil {
			return err
		}
		_, err = w.Write(out)
		return err
	}
	_, err := io.WriteString(w, text())
	return err
}

// Plural returns a number of things as text.
func Plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
		thing = strings.Replace(thing, "ys", "ies", 1)
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// Printable replaces characters that do not print, except newlines, with "?": the text comes from other programs, or from a node, and must
// not control the user's terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '\n' {
			return '?'
		}
		return r
	}, text)
}

// build is what `version -o json` prints.
type build struct {
	Program  string `json:"program"`
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"` // time of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Version returns the subcommand "version".
func Version(program, version string) *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "print the version; -o json also prints commit and date"}
	out := OutputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return out.Print(c.OutOrStdout(), buildOf(program, version, debug.ReadBuildInfo), func() string { return program + " " + version + "\n" })
	}
	return c
}

func buildOf(program, version string, read func() (*debug.BuildInfo, bool)) build {
	b := build{Program: program, Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := read()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
