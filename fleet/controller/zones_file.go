package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/fleet/controller/internal/zonefile"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/internal/cli"
)

// zonesFile has the flags of one of the commands that work with a file.
type zonesFile struct {
	file, zone             string
	id                     zone.Identity
	prune, once, json, yes bool
	watch, timeout, poll   time.Duration
	lasting                bool // the command has no default for --timeout
}

// zonesFileCommands returns the subcommands of `zones`. Each works with a file that has a DNSZone and the Secret of its key, and may have
// DNSRecords, DNSPolicies and Gateways.
func zonesFileCommands(hangups <-chan os.Signal, stdout, stderr io.Writer) []*cobra.Command {
	return []*cobra.Command{
		publishCommand(hangups, stdout, stderr),
		viewCommand("get [HOST...]", "print the records that the zone has for each host", cobra.ArbitraryArgs, nil,
			func(ctx context.Context, v *zonefile.View, _ *zonesFile, args []string) error {
				return v.Get(ctx, stdout, args...)
			}),
		viewCommand("check", "check the file and the primary", nil, nil,
			func(ctx context.Context, v *zonefile.View, _ *zonesFile, _ []string) error {
				return v.Check(ctx, stdout)
			}),
		viewCommand("owners", "print the clusters that publish in the zone, and with --watch which of them are silent", nil,
			func(c *cobra.Command, f *zonesFile) {
				c.Flags().DurationVar(&f.watch, "watch", 0,
					"compare the heartbeats after this `TIME`: a cluster is silent if its heartbeat does not change for three of its periods")
			}, func(ctx context.Context, v *zonefile.View, f *zonesFile, _ []string) error {
				return v.Owners(ctx, stdout, f.watch)
			}),
		viewCommand("plan", "print each host's first change that publish would send, as nsupdate commands", nil, identityFlags,
			func(ctx context.Context, v *zonefile.View, f *zonesFile, _ []string) error {
				return v.Plan(ctx, stdout, f.id)
			}),
		viewCommand("remove CLUSTER", "remove a dead cluster's records from the zone; without --yes, print what would be sent", oneCluster,
			func(c *cobra.Command, f *zonesFile) {
				f.lasting = true
				c.Flags().BoolVar(&f.yes, "yes", false, "send the updates; without it they are only printed")
				c.Flags().DurationVar(&f.watch, "watch", 0,
					"`TIME` to watch the cluster's heartbeat: if it changes, nothing is removed; 0: three of its periods, at least a minute")
			}, func(ctx context.Context, v *zonefile.View, f *zonesFile, args []string) error {
				return v.Remove(ctx, stdout, strings.ToLower(args[0]), f.yes, f.watch)
			}),
		adoptCommand(stdout, stderr),
	}
}

func oneCluster(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("name one cluster to remove; `zones owners` lists them")
	}
	return nil
}

func (f *zonesFile) fileFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "file", "", "`FILE` of kubectl get -o yaml: a DNSZone, its key's Secret, DNSRecords, DNSPolicies, Gateways")
	c.Flags().DurationVar(&f.timeout, "timeout", 0,
		"give up after this `TIME`; 0: never (publish, adopt, remove), or after a minute, plus --watch where there is one (others)")
}

func identityFlags(c *cobra.Command, f *zonesFile) {
	host, _ := os.Hostname() // ClusterID also accepts an empty name
	c.Flags().StringVar(&f.id.Cluster, "cluster-id", "", "`ID` of the cluster: 6 to 12 of a-z and 0-9")
	c.Flags().StringVar(&f.id.Instance, "instance", zone.ClusterID(host),
		"`ID` that distinguishes this writer from a clone with the same --cluster-id: 1 to 32 of a-z and 0-9; default: from the host name")
}

// check returns an error if the flags are invalid. identified is true for the commands that need --cluster-id, which are publish and plan.
func (f *zonesFile) check(identified bool) error {
	switch {
	case f.file == "":
		return errors.New("name a file with --file")
	case identified && f.id.Cluster == "":
		return errors.New("name the cluster with --cluster-id")
	case identified:
		return f.id.Validate()
	}
	return nil
}

func publishCommand(hangups <-chan os.Signal, stdout, stderr io.Writer) *cobra.Command {
	c := &cobra.Command{Use: "publish", Short: "publish the file's DNSRecords until SIGTERM, as the role zones does; SIGHUP rereads the file"}
	var f zonesFile
	f.fileFlags(c)
	identityFlags(c, &f)
	c.Flags().BoolVar(&f.prune, "prune", false, "remove this cluster's hosts from the zone if the file has no DNSRecord for them and no fault")
	c.Flags().BoolVar(&f.once, "once", false, "exit when everything is published, or with code 1 if something cannot be")
	c.Flags().BoolVar(&f.json, "json", false, "print each line as JSON")
	c.Flags().DurationVar(&f.poll, "poll", 5*time.Second, "`INTERVAL` (± 20 %) at which to query the primary for changes of the zone")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(true); err != nil {
			return cli.Usage(err)
		}
		if f.poll < 100*time.Millisecond {
			return cli.Usage(fmt.Errorf("--poll: %s is less than 100ms", f.poll))
		}
		ctx, cancel := f.limit(c.Context())
		defer cancel()
		return zonefile.Publish(ctx, zonefile.Publishing{File: f.file, Identity: f.id, Prune: f.prune, Once: f.once, JSON: f.json, Poll: f.poll,
			Reread: hangups, Out: stdout, Log: slog.New(slog.NewTextHandler(stderr, nil))})
	}
	return c
}

// limit returns a context that ends after --timeout, if that is set.
func (f *zonesFile) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.timeout > 0 {
		return context.WithTimeout(ctx, f.timeout)
	}
	return context.WithCancel(ctx)
}

// viewCommand makes a subcommand for one zone of the file; run gets a View of it.
func viewCommand(use, about string, args cobra.PositionalArgs, flags func(*cobra.Command, *zonesFile),
	run func(context.Context, *zonefile.View, *zonesFile, []string) error,
) *cobra.Command {
	c := &cobra.Command{Use: use, Short: about, Args: args}
	var f zonesFile
	f.fileFlags(c)
	c.Flags().StringVar(&f.zone, "zone", "", "`NAME` of the DNSZone object or of its zone, if the file has more than one")
	if flags != nil {
		flags(c, &f)
	}
	identified := c.Flags().Lookup("cluster-id") != nil
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(identified); err != nil {
			return cli.Usage(err)
		}
		v, err := zonefile.Open(f.file, f.zone)
		if err != nil {
			return &cli.ExitError{Code: cli.Config, Err: err, Bare: true}
		}
		if f.timeout == 0 && !f.lasting {
			f.timeout = time.Minute + f.watch
		}
		ctx, cancel := f.limit(c.Context())
		defer cancel()
		return run(ctx, v, &f, args)
	}
	return c
}
