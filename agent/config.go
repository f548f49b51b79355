package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/admit"
	"github.com/neardns/neardns/agent/internal/coredns/ask"
	"github.com/neardns/neardns/agent/internal/dns"
	"github.com/neardns/neardns/agent/internal/wire"
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

func runConfig(_ context.Context, e env, args []string) error {
	if len(args) == 0 {
		return badConfig(errors.New("say `config check` or `config show`"))
	}
	verb := args[0]
	fs := flags(e, "config "+verb)
	path := configFlag(fs)
	corefile := fs.Bool("corefile", false, "show the Corefile that is rendered from it")
	format := fs.String("format", "yaml", "yaml, or conflist-entry: the plugin's entry for the CNI conflist")
	if err := parse(fs, args[1:]); err != nil {
		return err
	}
	n, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	switch {
	case verb == "show" && *format == "conflist-entry":
		entry, err := n.ConflistEntry()
		if err != nil {
			return badConfig(err)
		}
		_, err = fmt.Fprintf(e.stdout, "%s\n", entry)
		return err
	case *format != "yaml":
		return badConfig(fmt.Errorf("--format %q: yaml or conflist-entry", *format))
	case verb == "show" && !*corefile:
		_, err := fmt.Fprint(e.stdout, n.Show())
		return err
	case verb != "show" && verb != "check":
		return badConfig(fmt.Errorf("config %s: say `config check` or `config show`", verb))
	}
	s, _, err := settings(e, n, "config")
	if err != nil {
		return badConfig(err)
	}
	if err := checkDNS(newServer(discardLog(), parts{gate: admit.New(admit.DefaultLimit), upstreams: ask.NewServers(discardLog()), answers: wire.NewStore(0)}), s.DNS, *path); err != nil {
		return badConfig(err)
	}
	if verb == "check" {
		_, err := fmt.Fprintln(e.stdout, "configuration is good")
		return err
	}
	text, err := dns.Render(s.DNS)
	if err != nil {
		return badConfig(err)
	}
	_, err = fmt.Fprint(e.stdout, text)
	return err
}

// checkDNS checks what becomes of the configuration at path; CoreDNS itself knows only the text that it is given.
func checkDNS(server *dns.Server, conf dns.Config, path string) error {
	err := server.Check(conf)
	if err != nil && path != "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}
