package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/pkg/podfile"
)

// configFlag adds the flag --config, which every command that reads the configuration has.
func configFlag(c *cobra.Command) (path *string) {
	return c.Flags().String("config", "", "NodeConfig `FILE`; without it: the running agent's configuration, if the command reads one, "+
		"else values detected on the node and defaults")
}

// loadConfig loads the configuration. Its errors have exit code 2.
func loadConfig(e env, path string) (*config.Node, error) {
	n, err := config.Load(path, e.Env)
	if err != nil {
		return nil, badConfig(err)
	}
	return n, nil
}

func configCommand(e env) *cobra.Command {
	var format string
	var rendered bool
	check := &cobra.Command{Use: "check", Short: "check the configuration file and the files that it names"}
	checked := configFlag(check)
	check.RunE = func(*cobra.Command, []string) error { return checkConfig(e, *checked) }
	show := &cobra.Command{Use: "show", Short: "print the configuration in effect, with the source of each value"}
	shown := configFlag(show)
	show.Flags().BoolVar(&rendered, "corefile", false,
		"print the Corefile that is rendered from --config, or from detected values and defaults")
	show.Flags().StringVar(&format, "format", "yaml", "output `FORMAT`: yaml; conflist-entry: the plugin's entry for the CNI conflist; "+
		"kubelet: the DNS settings in the kubelet's configuration, as JSON, or nothing if no file of the kubelet is found")
	show.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case rendered:
			return showLoaded(e, *shown, showCorefile)
		case format == "yaml":
			return showConfig(c.Context(), e, *shown)
		case format == "conflist-entry":
			return showLoaded(e, *shown, showEntry)
		case format == "kubelet":
			return showLoaded(e, *shown, showKubelet)
		}
		return cli.Usagef("--format %q: yaml, conflist-entry or kubelet", format)
	}
	return cli.Group("config", "check the configuration, or show it", check, show)
}

// render checks a configuration and the files that it names, and returns the Corefile that the agent would use.
func render(e env, n *config.Node, path string) (string, error) {
	p, _, err := plan.Read(n, e.ReadFile, "config")
	if err != nil {
		return "", badConfig(err)
	}
	if err := lifecycle.Check(p, path); err != nil {
		return "", badConfig(err)
	}
	text, err := corefile.Render(p.Server.Config)
	if err != nil {
		return "", badConfig(err)
	}
	return text, nil
}

func checkConfig(e env, path string) error {
	n, err := loadConfig(e, path)
	if err != nil {
		return err
	}
	warnOfPods(e, n)
	if _, err := render(e, n, path); err != nil {
		return err
	}
	if unknown := n.Unknown(); len(unknown) > 0 {
		// The agent ignores unknown keys (D-040). This command reports them as a fault, because they may be misspelled.
		return badConfig(errors.New(strings.Join(unknown, "\n")))
	}
	_, err = fmt.Fprintln(e.Stdout, "configuration is good")
	return err
}

// warnOfPods prints warnings about the DNS settings that the configuration wants for pods.
func warnOfPods(e env, n *config.Node) {
	warn(e, n.Warnings())
	files, _ := podfile.List(n.StateDir) // unreadable files are skipped
	if lacks := inspect.PodDNSWarning(n, files); lacks != "" {
		warn(e, []string{lacks})
	}
}

// showLoaded loads the configuration, prints warnings about unknown keys, and calls show.
func showLoaded(e env, path string, show func(e env, n *config.Node, path string) error) error {
	n, err := loadConfig(e, path)
	if err != nil {
		return err
	}
	warn(e, n.Unknown())
	return show(e, n, path)
}

func showCorefile(e env, n *config.Node, path string) error {
	text, err := render(e, n, path)
	if err != nil {
		return err
	}
	_, err = io.WriteString(e.Stdout, text)
	return err
}

// showEntry prints the plugin's conflist entry. The installer calls it, and passes the warnings on.
func showEntry(e env, n *config.Node, _ string) error {
	warnOfPods(e, n)
	entry, err := n.ConflistEntry()
	if err != nil {
		return badConfig(err)
	}
	_, err = fmt.Fprintf(e.Stdout, "%s\n", entry)
	return err
}

// showConfig prints the configuration in effect and, with upstreams.external: auto, the servers for names outside the cluster.
func showConfig(ctx context.Context, e env, path string) error {
	in, err := inspector(ctx, e, path)
	if err != nil {
		return err
	}
	n, fault := in.Conf, in.Fault
	if p, _, err := plan.Read(n, e.ReadFile, "config"); err == nil && n.Upstreams.Auto {
		n.Remark("upstreams.external", p.External)
	}
	warn(e, n.Unknown())
	if _, err := fmt.Fprint(e.Stdout, n.Show()); err != nil {
		return err
	}
	if fault != nil {
		return &cli.ExitError{Code: cli.Degraded, Err: fault}
	}
	return nil
}

func warn(e env, lines []string) {
	for _, l := range lines {
		fmt.Fprintln(e.Stderr, "warning:", l)
	}
}

// showKubelet prints what was detected in the kubelet's configuration; the installer stores it for the agent.
func showKubelet(e env, n *config.Node, _ string) error {
	k, ok, err := n.Kubelet(e.Env)
	if err != nil {
		return badConfig(err)
	} else if !ok {
		return nil
	}
	return json.NewEncoder(e.Stdout).Encode(k)
}
