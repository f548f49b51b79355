package cli

import (
	"encoding/json"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// Output is the flag -o of a command that can print its result as text, JSON or YAML. The flag --json is short for -o json.
type Output struct {
	format string
	json   bool
	extra  []string
}

// OutputFlag adds the flags -o and --json to c. extra are formats that only this command has.
func OutputFlag(c *cobra.Command, extra ...string) *Output {
	o := &Output{extra: extra}
	names := strings.Join(append([]string{"json", "yaml"}, extra...), ", ")
	c.Flags().StringVarP(&o.format, "output", "o", "", "print it as `FORMAT`: "+names+"; default: text")
	c.Flags().BoolVar(&o.json, "json", false, "the same as -o json")
	return o
}

// Format returns the chosen format: "" for text, "json", "yaml" or one of the extra formats.
func (o *Output) Format() (string, error) {
	switch {
	case o.json && o.format != "" && o.format != "json":
		return "", Usagef("--json and -o %s: use one of them", o.format)
	case o.json:
		return "json", nil
	case o.format != "" && !slices.Contains(append([]string{"json", "yaml"}, o.extra...), o.format):
		return "", Usagef("-o %s: json, yaml%s", o.format, strings.Join(append([]string{""}, o.extra...), ", "))
	}
	return o.format, nil
}

// Print prints v as JSON or YAML if that is the chosen format, and else what text returns.
func (o *Output) Print(w io.Writer, v any, text func() string) error {
	format, err := o.Format()
	if err != nil {
		return err
	}
	switch format {
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
	_, err = io.WriteString(w, text())
	return err
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
