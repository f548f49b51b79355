// Command sharedzones shows what happens to one zone that many clusters write at once: each cluster is a process of
// `neardns-controller zones publish`, the servers are BIND, Knot and PowerDNS of Debian, and the network between them can be cut. It judges
// the zone by a transfer of its own, and counts messages on the wire. Next to it runs the seed's loop, which reads, merges, writes and
// looks again. It is what `make shared-zones` and `make demo-zones` run.
//
// Everything is on loopback, in processes and folders that it removes. It needs no root. A run of all rows on all servers, not a short one,
// also writes its result and the table of fleet/docs/shared-zones-measured.md.
//
// Failure policy: a bar that is missed is named below the table, and the exit code is 1, unless the server alone is as slow (perChange). A
// row that cannot be measured counts as missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// options are the command line.
type options struct {
	short  bool
	only   string
	server string
	json   string
	binary string
	list   bool
	show   bool
}

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "fewer clusters and rounds: five minutes")
	flag.StringVar(&o.only, "only", "", "rows whose name matches this regular `expression`")
	flag.StringVar(&o.server, "server", "", "BIND, Knot or PowerDNS alone")
	flag.StringVar(&o.json, "json", "", "also write the result to this `file`")
	flag.StringVar(&o.binary, "controller", "bin/neardns-controller", "`path` of neardns-controller")
	flag.BoolVar(&o.list, "list", false, "list the rows")
	flag.BoolVar(&o.show, "demo", false, "show two clusters and one zone instead, in a minute")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := o.run(ctx, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sharedzones:", err)
		os.Exit(1)
	}
}

var errMissed = errors.New("bars were missed")

// row is one line of the table. Its function measures on one server.
type row struct {
	name  string
	title string
	bar   string
	run   func(*stand, *cell, size)
	need  func(size) (clusters int, hosts []string) // whose keys the server must know
}

// size is how much a run does.
type size struct {
	clusters, rounds, hosts int
	chaos                   time.Duration
	writers                 int // of the chaos
	thaws, cuts             int
	rest, stall             time.Duration
	timed                   bool    // durations are held to their bars: nothing else runs next to it
	seed                    uint64  // what is drawn at random; a short run, which is part of the check, always draws the same
	slack                   float64 // messages a cluster above the bar, where few clusters and rounds leave much to chance
}

var (
	// Of 500 changes two may be sent again: a server on a busy machine is late now and then. That is still 1.00.
	whole = size{clusters: 50, rounds: 10, hosts: 100, chaos: 10 * time.Minute, writers: 16, thaws: 100, cuts: 2, rest: time.Minute, stall: 20 * time.Second,
		timed: true, slack: 0.004}
	small = size{clusters: 10, rounds: 2, hosts: 20, chaos: 12 * time.Second, writers: 6, thaws: 1, cuts: 1, rest: 15 * time.Second, stall: 7 * time.Second, slack: 0.4}
)

func (o options) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.list {
		for _, r := range rows {
			fmt.Fprintf(stdout, "%-12s %s: %s\n", r.name, r.title, r.bar)
		}
		return nil
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	if _, err := os.Stat(o.binary); err != nil {
		return fmt.Errorf("%w: run make build", err)
	}
	if o.server != "" && !slices.Contains(zoneserver.Kinds(), zoneserver.Kind(o.server)) {
		return fmt.Errorf("there is no server %q, but %v", o.server, zoneserver.Kinds())
	}
	if o.show {
		return o.demo(ctx, stdout, stderr)
	}
	sz := whole
	sz.seed = uint64(time.Now().UnixNano())
	if o.short {
		sz = small
	}
	out := result{Day: time.Now().UTC().Format(time.DateOnly), Commit: os.Getenv(compat.EnvCommit), Short: o.short}
	for _, r := range rows {
		if !only.MatchString(r.name) {
			continue
		}
		cells := o.row(ctx, r, sz, stderr)
		out.Cells = append(out.Cells, cells...)
		for _, c := range cells {
			fmt.Fprintf(stderr, "%s, %s: %s %v\n", c.Row, c.Server, c.Text, c.Missed)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if len(out.Cells) == 0 {
		return fmt.Errorf("no row matches %q; -list lists the rows", o.only)
	}
	out.table(stdout)
	if o.json != "" {
		err = out.save(o.json)
	}
	if !o.short && o.only == "" && o.server == "" {
		err = errors.Join(err, out.keep())
	}
	if err != nil {
		return err
	}
	if !out.good() {
		return errMissed
	}
	return nil
}

// row measures one row on each server. Short runs measure the servers side by side: nothing that they promise is a matter of milliseconds.
func (o options) row(ctx context.Context, r row, sz size, stderr io.Writer) []cell {
	var kinds []zoneserver.Kind
	for _, kind := range zoneserver.Kinds() {
		if o.server == "" || o.server == string(kind) {
			kinds = append(kinds, kind)
		}
	}
	cells := make([]cell, len(kinds))
	var measuring sync.WaitGroup
	for i, kind := range kinds {
		measure := func() { cells[i] = o.cell(ctx, r, kind, sz, stderr) }
		if o.short {
			measuring.Go(measure)
		} else {
			measure()
		}
	}
	measuring.Wait()
	return cells
}

func (o options) cell(ctx context.Context, r row, kind zoneserver.Kind, sz size, stderr io.Writer) cell {
	c := cell{Row: r.name, Title: r.title, Server: string(kind), Bar: r.bar}
	start := time.Now()
	err := testutil.Program(ctx, stderr, func(t testutil.TB) {
		n, hosts := r.need(sz)
		r.run(newStand(t, kind, o.binary, clusterIDs(n), hosts...), &c, sz)
	})
	if err != nil {
		c.miss("cannot be measured: %v", err)
	}
	c.Seconds = time.Since(start).Seconds()
	return c
}
