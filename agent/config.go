package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/pkg/podfile"
)

// configFlag is the flag that every command with a configuration has.
func configFlag(fs *flag.FlagSet) *string {
	return fs.String("config", "", "NodeConfig `FILE`; without it everything is detected on the node")
}

// loadConfig reads NodeConfig; its faults are exit code 2.
func loadConfig(e env, path string) (*config.Node, error) {
	n, err := config.Load(path, config.Env{LookupEnv: e.lookupEnv, ReadFile: e.readFile})
	if err != nil {
		return nil, badConfig(err)
	}
	return n, nil
}

func runConfig(ctx context.Context, e env, args []string) error {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	fs := flags("config check|show")
	path := configFlag(fs)
	rendered := fs.Bool("corefile", false, "show the Corefile that is rendered from it")
	format := fs.String("format", "yaml", "yaml; conflist-entry: the plugin's entry for the CNI conflist; kubelet: what is detected by the "+
		"kubelet's own file, as JSON, or nothing")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	if verb != "check" && verb != "show" {
		return badConfig(errors.New("say `config check` or `config show`"))
	}
	if !slices.Contains([]string{"yaml", "conflist-entry", "kubelet"}, *format) {
		return badConfig(fmt.Errorf("--format %q: yaml, conflist-entry or kubelet", *format))
	}
	if verb == "show" && !*rendered && *format == "yaml" {
		return showConfig(ctx, e, *path)
	}
	n, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	unknown := n.Unknown()
	if verb == "show" {
		sayLines(e, unknown)
	}
	if verb == "check" || *format == "conflist-entry" { // the installer passes them on
		sayLines(e, n.Warnings())
		files, _ := podfile.List(n.StateDir) // files that cannot be read are skipped
		if lacks := inspect.Lever(n, files); lacks != "" {
			sayLines(e, []string{lacks})
		}
	}
	switch {
	case verb == "show" && *format == "conflist-entry":
		entry, err := n.ConflistEntry()
		if err != nil {
			return badConfig(err)
		}
		_, err = fmt.Fprintf(e.stdout, "%s\n", entry)
		return err
	case verb == "show" && *format == "kubelet":
		return showKubelet(e, n)
	}
	p, _, err := plan.Read(n, e.readFile, "config")
	if err != nil {
		return badConfig(err)
	}
	if err := lifecycle.Check(p, *path); err != nil {
		return badConfig(err)
	}
	if verb == "check" && len(unknown) > 0 {
		// A running agent ignores them (D-040); this command reports a slip.
		return badConfig(errors.New(strings.Join(unknown, "\n")))
	}
	if verb == "check" {
		_, err := fmt.Fprintln(e.stdout, "configuration is good")
		return err
	}
	text, err := corefile.Render(p.Server.Config)
	if err != nil {
		return badConfig(err)
	}
	_, err = fmt.Fprint(e.stdout, text)
	return err
}

// showConfig prints the configuration in effect, with the servers for names outside of the cluster.
func showConfig(ctx context.Context, e env, path string) error {
	in, err := inspector(ctx, e, path)
	if err != nil {
		return err
	}
	n, fault := in.Conf, in.Fault
	if p, _, err := plan.Read(n, e.readFile, "config"); err == nil && n.Upstreams.Auto {
		n.Remark("upstreams.external", p.External)
	}
	sayLines(e, n.Unknown())
	if _, err := fmt.Fprint(e.stdout, n.Show()); err != nil {
		return err
	}
	if fault != nil {
		return &exitError{code: exitDegraded, err: fault}
	}
	return nil
}

func sayLines(e env, lines []string) {
	for _, l := range lines {
		fmt.Fprintln(e.stderr, "warning:", l)
	}
}

// showKubelet is for the installer, which writes it where containers find it that do not see the kubelet's folder.
func showKubelet(e env, n *config.Node) error {
	k, ok, err := n.Kubelet(config.Env{LookupEnv: e.lookupEnv, ReadFile: e.readFile})
	if err != nil {
		return badConfig(err)
	} else if !ok {
		return nil
	}
	return json.NewEncoder(e.stdout).Encode(k)
}
