package rfc2136

import (
	"context"
	"errors"
	"fmt"

	"github.com/miekg/dns"
)

// Transfer is the result of a transfer: the whole zone in Full, or the zone's changes since a serial in Steps. If nothing has changed,
// both are empty.
type Transfer struct {
	Serial uint32   // the zone's serial on the server
	Full   []dns.RR // the SOA first
	Steps  []Delta  // each begins at the serial at which the one before it ends

	Records, Octets int // numbers of transferred records, including SOAs and deleted records, and of their bytes with names uncompressed
}

// Delta is the change of a zone from one serial to the next.
type Delta struct {
	From, To       uint32
	Deleted, Added []dns.RR // without SOAs
	SOA            *dns.SOA // the SOA after the change
}

// AXFR transfers the whole zone.
func (c *Client) AXFR(ctx context.Context) (*Transfer, error) {
	m := new(dns.Msg)
	m.SetAxfr(c.Zone)
	t, err := c.transfer(ctx, m, &assembler{zone: c.Zone})
	if err != nil {
		return nil, fmt.Errorf("transfer %s: %w", c.Zone, err)
	}
	return t, nil
}

// IXFR transfers the changes since a serial, or the whole zone if the server sends that instead. If the Transfer has only a Serial, and
// that is older than since (because the zone was restored from a backup), the caller must transfer the whole zone.
func (c *Client) IXFR(ctx context.Context, since uint32) (*Transfer, error) {
	m := new(dns.Msg)
	m.SetIxfr(c.Zone, since, ".", ".")
	t, err := c.transfer(ctx, m, &assembler{zone: c.Zone, incremental: true, since: since})
	if err != nil {
		return nil, fmt.Errorf("transfer %s since %d: %w", c.Zone, since, err)
	}
	return t, nil
}

func (c *Client) transfer(ctx context.Context, m *dns.Msg, a *assembler) (*Transfer, error) {
	m.RecursionDesired = false
	v, err := c.send(ctx, m)
	if err != nil {
		return nil, err
	}
	defer v.close()
	for {
		in, err := v.receive()
		if err != nil {
			if KindOf(err) == NoAnswer && a.t.Records > 0 {
				err = &Error{Kind: Cut, Err: fmt.Errorf("the transfer was cut short: %w", err)}
			}
			return nil, err
		}
		for _, rr := range in.Answer {
			if err := a.add(rr); err != nil {
				return nil, &Error{Kind: BadAnswer, Err: err}
			}
		}
		if c.Most > 0 && (a.t.Records > c.Most || a.t.Octets > c.Most*Octets) {
			return nil, &Error{Kind: TooLarge, Err: fmt.Errorf("a transfer of more than %d records, or %d octets: "+
				"take out of the zone what does not belong there", c.Most, c.Most*Octets)}
		}
		if done, err := a.end(); err != nil {
			return nil, &Error{Kind: BadAnswer, Err: err}
		} else if done && !v.verified() {
			return nil, &Error{Kind: BadAnswer, Err: errors.New("the last message of the transfer is not signed")}
		} else if done {
			return &a.t, nil
		}
	}
}

// assembler builds a Transfer from the RRs as they arrive. A whole zone begins and ends with the same SOA. An incremental transfer
// begins and ends with the newest SOA. Between them, each change has its old SOA, the deleted RRs, its new SOA, and the added RRs (RFC
// 1995 section 4).
type assembler struct {
	zone        string
	incremental bool // an IXFR was requested
	since       uint32

	t    Transfer
	mode mode
	soa  *dns.SOA
}

type mode int

const (
	begin   mode = iota
	second       // the first SOA was read
	whole        // among a whole zone's RRs
	deleted      // after a step's old SOA, among the RRs that the step deletes
	added        // after a step's new SOA, among the RRs that the step adds
	done
)

func (a *assembler) add(rr dns.RR) error {
	a.t.Records++
	a.t.Octets += dns.Len(rr)
	name := dns.CanonicalName(rr.Header().Name)
	soa, isSOA := rr.(*dns.SOA)
	if isSOA && name != a.zone {
		return fmt.Errorf("an SOA of %s in a transfer of %s", name, a.zone)
	}
	if !dns.IsSubDomain(a.zone, name) {
		return fmt.Errorf("%s in a transfer of %s", name, a.zone)
	}
	switch a.mode {
	case begin:
		if !isSOA {
			return errors.New("a transfer that does not begin with an SOA")
		}
		a.soa, a.t.Serial, a.mode = soa, soa.Serial, second
	case second:
		if isSOA && a.incremental && soa.Serial != a.t.Serial {
			if soa.Serial != a.since {
				return fmt.Errorf("an increment since %d, not %d", soa.Serial, a.since)
			}
			a.t.Steps, a.mode = []Delta{{From: soa.Serial}}, deleted
			return nil
		}
		a.t.Full, a.mode = []dns.RR{a.soa}, whole
		return a.whole(rr, soa)
	case whole:
		return a.whole(rr, soa)
	case deleted:
		step := &a.t.Steps[len(a.t.Steps)-1]
		if isSOA {
			step.To, step.SOA, a.mode = soa.Serial, soa, added
		} else {
			step.Deleted = append(step.Deleted, rr)
		}
	case added:
		step := &a.t.Steps[len(a.t.Steps)-1]
		switch {
		case !isSOA:
			step.Added = append(step.Added, rr)
		case soa.Serial != step.To:
			return fmt.Errorf("a step from %d after one to %d", soa.Serial, step.To)
		case soa.Serial == a.t.Serial:
			a.mode = done
		default:
			a.t.Steps, a.mode = append(a.t.Steps, Delta{From: soa.Serial}), deleted
		}
	case done:
		return errors.New("more after the end of a transfer")
	}
	return nil
}

func (a *assembler) whole(rr dns.RR, soa *dns.SOA) error {
	switch {
	case soa == nil:
		a.t.Full = append(a.t.Full, rr)
	case soa.Serial != a.t.Serial:
		return fmt.Errorf("an SOA with serial %d in a transfer of serial %d", soa.Serial, a.t.Serial)
	default:
		a.mode = done
	}
	return nil
}

// end reports, after each message, whether the transfer is complete. An IXFR's answer with a single SOA that is not newer than since is
// complete, and has no change.
func (a *assembler) end() (bool, error) {
	if a.t.Records == 0 {
		return false, errors.New("a transfer without an RR")
	}
	if a.mode == second && a.incremental && !Newer(a.t.Serial, a.since) {
		return true, nil
	}
	return a.mode == done, nil
}

// Newer reports whether serial a is newer than b, by the serial arithmetic of RFC 1982.
func Newer(a, b uint32) bool { return a != b && a-b < 1<<31 }
