package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/fleet/controller/internal/zonefile"
	"github.com/neardns/neardns/fleet/zones/adopt"
	"github.com/neardns/neardns/internal/cli"
)

// intervals has the default time between two runs of each controller whose hosts can be adopted.
var intervals = map[string]time.Duration{adopt.ExternalDNS: time.Minute, adopt.Kuadrant: 15 * time.Minute}

func adoptCommand(stdout, stderr io.Writer) *cobra.Command {
	a := zonefile.Adoption{Out: stdout, Log: stderr}
	r := &a.Registry
	c := viewCommand("adopt", "take over the hosts of external-dns or Kuadrant, in steps; --undo restores them", nil,
		func(c *cobra.Command, f *zonesFile) {
			f.lasting = true
			c.Flags().StringVar(&a.Export, "export", "", "`FILE` with the hosts as they were and the step reached; the first run makes it")
			c.Flags().StringVar(&r.From, "from", "", "`CONTROLLER` that owns the hosts: external-dns or kuadrant")
			c.Flags().StringVar(&r.Owner, "owner", "", "`ID` of the hosts' owner: external-dns' --txt-owner-id")
			c.Flags().StringVar(&r.Prefix, "txt-prefix", "", "`TEXT` of external-dns' flag of this name")
			c.Flags().StringVar(&r.Suffix, "txt-suffix", "", "`TEXT` of external-dns' flag of this name")
			c.Flags().StringVar(&r.Wildcard, "txt-wildcard-replacement", "", "`TEXT` of external-dns' flag of this name")
			c.Flags().DurationVar(&a.Interval, "interval", 0,
				"`TIME` between two runs of the other controller; default: its own default, 1m (external-dns) or 15m (kuadrant)")
			c.Flags().BoolVar(&a.Undo, "undo", false, "restore the hosts as they were exported")
		}, func(ctx context.Context, v *zonefile.View, _ *zonesFile, _ []string) error {
			return v.Adopt(ctx, a)
		})
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if a.Export == "" {
			return cli.Usagef("name a file with --export")
		}
		if a.Undo {
			return run(c, args)
		}
		if err := r.Validate(); err != nil {
			return cli.Usage(err)
		}
		if a.Interval == 0 {
			a.Interval = intervals[r.From]
		}
		if a.Interval < 0 {
			return cli.Usage(fmt.Errorf("--interval: %s is negative", a.Interval))
		}
		return run(c, args)
	}
	return c
}
