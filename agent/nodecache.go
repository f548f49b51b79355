package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/internal/dns/corefile"
)

const nodecacheName = "nodecache"

// nodecacheCommand returns the command `nodecache`. Package flag parses node-cache's flags, which begin with one dash.
func nodecacheCommand(e env) *cobra.Command {
	return &cobra.Command{
		Use: nodecacheName + " [node-cache's flags]", DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		Short: "run in place of NodeLocal DNSCache's node-cache, with its flags and Corefile template; flags without a command run this one",
		RunE: func(c *cobra.Command, args []string) error {
			opts, err := nodecache.Parse(args, e.Stdout)
			switch {
			case errors.Is(err, flag.ErrHelp):
				return nil
			case err != nil:
				return badConfig(err)
			case opts.ShowVersion:
				_, err := fmt.Fprintln(e.Stdout, program, e.Version)
				return err
			case opts.ShowPlugins:
				_, err := fmt.Fprintln(e.Stdout, strings.Join(corefile.Directives(), "\n"))
				return err
			}
			return ended(lifecycle.NodeCache(c.Context(), e, opts))
		},
	}
}
