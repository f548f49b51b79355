package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/neardns/neardns/fleet/controller/internal/zonefile"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// zoneCommands is the usage of the commands of `zones` that work with a file and without a cluster.
const zoneCommands = `  zones publish --file FILE --cluster-id ID [--instance ID] [--prune] [--once] [--json] [--poll 5s]
      publish what the file's DNSRecords say, as a cluster does, until SIGTERM; SIGHUP reads the file again
  zones get|check --file FILE [--zone NAME]
      print what the zone holds of each host; check the file and the primary
  zones owners --file FILE [--zone NAME] [--watch 15m]
      print the clusters that publish in the zone, and with --watch which of them are silent
  zones plan --file FILE --cluster-id ID [--instance ID] [--zone NAME]
      print the messages that publish would send, as nsupdate writes them
  zones remove --file FILE [--zone NAME] [--watch 1m] [--yes] CLUSTER
      take a dead cluster's records out of the zone; without --yes, print what would be sent
`

// zonesFile holds the flags of one of these commands.
type zonesFile struct {
	file, zone                     string
	id                             zone.Identity
	prune, once, json, yes         bool
	watch, timeout, poll           time.Duration
	hangups                        <-chan os.Signal
	identified, publishes, removes bool // properties of the command
}

// isZonesFile reports whether runZonesFile handles the command.
func isZonesFile(command string) bool {
	switch command {
	case "publish", "get", "owners", "plan", "remove", "check":
		return true
	}
	return false
}

// runZonesFile runs `zones COMMAND`; args start with the command.
func runZonesFile(ctx context.Context, hangups <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	name := args[0]
	c := zonesFile{hangups: hangups, identified: name == "publish" || name == "plan", publishes: name == "publish", removes: name == "remove"}
	fs := flag.NewFlagSet("neardns-controller zones "+name, flag.ContinueOnError)
	fs.StringVar(&c.file, "file", "", "`FILE` with DNSZone, its Secret and DNSRecords, as kubectl prints them")
	fs.DurationVar(&c.timeout, "timeout", 0, "give up after this `TIME`; 0: publish waits, the others take a minute")
	if !c.publishes {
		fs.StringVar(&c.zone, "zone", "", "`NAME` of the DNSZone or zone, where the file has several")
	}
	if c.identified {
		host, _ := os.Hostname() // ClusterID also accepts an empty name
		fs.StringVar(&c.id.Cluster, "cluster-id", "", "`ID` of the cluster: 6 to 12 of a-z and 0-9")
		fs.StringVar(&c.id.Instance, "instance", zone.ClusterID(host), "`ID` by which a clone of the cluster is told; by default, of this machine's name")
	}
	if c.publishes {
		fs.BoolVar(&c.prune, "prune", false, "leave each host that the cluster publishes and the file does not name")
		fs.BoolVar(&c.once, "once", false, "end when the zone has all, with 1 where it cannot")
		fs.BoolVar(&c.json, "json", false, "print lines of JSON")
		fs.DurationVar(&c.poll, "poll", 5*time.Second, "ask the primary this often, give or take 20 %, whether the zone changed")
	}
	if c.removes {
		fs.BoolVar(&c.yes, "yes", false, "really remove it")
		fs.DurationVar(&c.watch, "watch", time.Minute, "`TIME` for which the cluster's heartbeat must not change before")
	}
	if name == "owners" {
		fs.DurationVar(&c.watch, "watch", 0, "compare the heartbeats after this `TIME`: a cluster is silent whose heartbeat does not change for three of its periods")
	}
	var operands []string
	for rest := args[1:]; ; { // flags may follow an operand, as in `zones remove ID --yes`
		if code, ended := parse(fs, rest, stdout, stderr); ended {
			return code
		}
		if fs.NArg() == 0 {
			break
		}
		operands, rest = append(operands, fs.Arg(0)), fs.Args()[1:]
	}
	if err := c.check(name, operands); err != nil {
		_, _ = fmt.Fprintf(stderr, "neardns-controller zones %s: %v\n", name, err)
		return exitConfig
	}
	if c.timeout == 0 && !c.publishes {
		c.timeout = time.Minute + c.watch
	}
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	if err := c.run(ctx, name, operands, stdout, stderr); err != nil {
		_, _ = fmt.Fprintf(stderr, "neardns-controller zones %s: %v\n", name, err)
		return exitFailed
	}
	return exitGood
}

// check returns an error if the flags or arguments are wrong.
func (c *zonesFile) check(name string, args []string) error {
	switch {
	case c.file == "":
		return errors.New("name a file with --file")
	case c.identified && c.id.Cluster == "":
		return errors.New("name the cluster with --cluster-id")
	case c.identified && c.id.Validate() != nil:
		return c.id.Validate()
	case c.publishes && c.poll < 100*time.Millisecond:
		return fmt.Errorf("--poll: %s is less than 100ms", c.poll)
	case c.removes && len(args) != 1:
		return errors.New("name one cluster to remove; `zones owners` lists them")
	case !c.removes && name != "get" && len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

func (c *zonesFile) run(ctx context.Context, name string, args []string, stdout, stderr io.Writer) error {
	if c.publishes {
		return zonefile.Publish(ctx, zonefile.Publishing{File: c.file, Identity: c.id, Prune: c.prune, Once: c.once, JSON: c.json, Poll: c.poll, Reread: c.hangups,
			Out: stdout, Log: slog.New(slog.NewTextHandler(stderr, nil))})
	}
	v, err := zonefile.Open(c.file, c.zone)
	if err != nil {
		return err
	}
	switch name {
	case "get":
		return v.Get(ctx, stdout, args...)
	case "owners":
		return v.Owners(ctx, stdout, c.watch)
	case "plan":
		return v.Plan(ctx, stdout, c.id)
	case "check":
		return v.Check(ctx, stdout)
	}
	return v.Remove(ctx, stdout, strings.ToLower(args[0]), c.yes, c.watch)
}
