package zonefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/fleet/zones/adopt"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/pkg/atomicfile"
)

// Adoption is one call of `zones adopt`, which takes over hosts from another controller, external-dns or Kuadrant.
type Adoption struct {
	Export   string // path of the file with the hosts as they were before, and the step that the adoption has reached
	Registry adopt.Registry
	Interval time.Duration // time between two runs of that controller
	Undo     bool
	Out, Log io.Writer // Out gets the hosts' DNSRecords as YAML, Log what happens
}

// maxExport is the maximum size of an export in bytes, which is enough for some 100,000 hosts.
const maxExport = 64 << 20

// maxFailures is the number of reads of the zone in a row that end the command if they fail with SERVFAIL or without a usable answer, or
// because the server restarts. A single such failure must not end it, because the waits between steps are long. Any other failure ends it
// at once.
const maxFailures = 10

// passing are the failures of a server that is busy or restarts, and of one whose answer was lost.
var passing = []rfc2136.Kind{rfc2136.NoAnswer, rfc2136.BadAnswer, rfc2136.ServerFailed, rfc2136.Unreachable, rfc2136.Cut}

// Adopt makes the export in the first call. The next call checks for a while that the other controller no longer changes the hosts'
// records, takes the hosts, and verifies that they stay taken. It can be interrupted at any time; the next call continues. With Undo, Adopt
// restores the hosts.
func (v *View) Adopt(ctx context.Context, a Adoption) error {
	lock, err := os.OpenFile(a.Export+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s: another run uses it: wait until that ends, or end it: %w", a.Export, err)
	}
	data, err := atomicfile.Read(a.Export, maxExport)
	if errors.Is(err, fs.ErrNotExist) && !a.Undo {
		return v.export(ctx, a)
	}
	if err != nil {
		return err
	}
	e, err := adopt.Decode(data)
	if err != nil {
		return fmt.Errorf("%s: %w", a.Export, err)
	}
	if e.Zone != v.client.Zone {
		return fmt.Errorf("%s is of the zone %s, not of %s: name another file with --export", a.Export, e.Zone, v.client.Zone)
	}
	if !a.Undo && e.Registry != a.Registry {
		return fmt.Errorf("%s has other values of --from, --owner or --txt-...: repeat those, or name another file with --export", a.Export)
	}
	return v.goOn(ctx, a, e)
}

// export makes the export, and prints what the user has to do before the next call.
func (v *View) export(ctx context.Context, a Adoption) error {
	z, err := v.read(ctx)
	if err != nil {
		return err
	}
	e, err := adopt.New(a.Registry, z, time.Now())
	if err != nil {
		return err
	}
	if err := a.save(e); err != nil {
		return err
	}
	a.manifests(e, nil)
	a.log("%d hosts are exported to %s; standard output has their DNSRecords, to be applied when the hosts are taken", len(e.Hosts), a.Export)
	for _, l := range e.Left {
		a.log("stays with %s: %s: %s", e.From, l.Record, l.Reason)
	}
	a.log("%s\nThen run this command again.", e.Exclusion())
	return nil
}

// goOn makes steps until the adoption, or its undoing, is complete or has failed.
func (v *View) goOn(ctx context.Context, a Adoption, e *adopt.Export) error {
	shown := map[string]bool{}
	for passes, failures := 0, 0; ; {
		z, err := v.read(ctx)
		if failures++; failures < maxFailures && slices.Contains(passing, rfc2136.KindOf(err)) {
			a.log("%v; trying again", err)
			if err := wait(ctx, time.Second); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		failures = 0
		step := e.Step
		var act adopt.Action
		var fault error
		if a.Undo {
			act, fault = e.Undo(z)
		} else {
			act, fault = e.Next(z, time.Now(), a.Interval)
		}
		if err := a.save(e); err != nil {
			return err
		}
		for _, line := range act.Foreign {
			if !shown[line] {
				shown[line] = true
				a.log("%s", line)
			}
		}
		if fault != nil {
			if errors.Is(fault, adopt.ErrForeign) && !a.Undo {
				a.manifests(e, act.Changed)
			}
			return fault
		}
		if e.Step != step {
			a.log("%s: %s", e.Step, e.Describe(a.Interval))
		}
		if act.Done {
			if !a.Undo {
				a.manifests(e, nil)
			}
			return nil
		}
		if len(act.Updates) > 0 {
			if passes++; passes > len(e.Hosts)+20 {
				return fmt.Errorf("others change the same hosts all the time, or the server makes no change; %d hosts are left", len(act.Updates))
			}
			if act.Wait, err = v.send(ctx, a, e, act.Updates); err != nil {
				return err
			}
		}
		if err := wait(ctx, act.Wait); err != nil {
			return err
		}
	}
}

// send sends updates, up to the first one with a failure that may pass. It returns how long to wait before the zone is read again.
func (v *View) send(ctx context.Context, a Adoption, e *adopt.Export, updates []adopt.Update) (time.Duration, error) {
	for i, u := range updates {
		err := v.client.Update(ctx, u.Prereqs, u.Changes)
		switch kind := rfc2136.KindOf(err); {
		case err == nil || kind == rfc2136.Prerequisite:
			if !a.Undo {
				e.Sent(u)
			}
		case slices.Contains(passing, kind):
			a.log("%v; trying again", err)
			return time.Second, a.save(e)
		default:
			return 0, errors.Join(err, a.save(e))
		}
		if i%(len(updates)/20+1) == 0 { // at most 20 times in a call, because a large export takes long to write
			if err := a.save(e); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

func (a *Adoption) save(e *adopt.Export) error {
	data, err := e.Encode()
	if err != nil {
		return err
	}
	return atomicfile.Write(a.Export, data, atomicfile.Options{Mode: 0o600, Durable: true})
}

func (a *Adoption) log(format string, args ...any) { _, _ = fmt.Fprintf(a.Log, format+"\n", args...) }

// manifests prints the DNSRecords of the exported hosts, except those in changed: another program has changed them since the export.
func (a *Adoption) manifests(e *adopt.Export, changed map[string]bool) {
	var b strings.Builder
	for i := range e.Hosts {
		if !changed[e.Hosts[i].Name] {
			b.WriteString(e.Hosts[i].Manifest())
		}
	}
	_, _ = io.WriteString(a.Out, b.String())
}
