// Package nft writes and reads neardns's packet rules with nftables. It turns a steer.Ruleset into a table, writes it in one
// transaction, and compares the kernel's table with it, rules by the digests that they carry (digest.go).
//
// It guarantees that it changes only the table "inet neardns" in the netns that it was opened for.
//
// On failure it returns an error, and the kernel keeps the rules that it had. If another transaction interfered, a call repeats a
// few times without a pause; after that, the caller decides when to try again.
package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Nftables is the nftables back end in one netns. It uses netlink and needs no program. Until Close it has a socket open in that
// netns. Several processes may use the back end at the same time, but one value is for one goroutine at a time.
type Nftables struct {
	nsFD int
	conn *netlink.Conn
}

// attempts is how often an operation is tried at most. EINTR means that another program's commit interrupted a dump. ENOENT,
// EEXIST or EBUSY means that a transaction lost a race with another neardns process, EAGAIN that two reads differed
// (errUnsettled). An attempt that depends on the kernel's state reads it again.
const attempts = 8

// Open opens the back end in the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards.
func Open(nsFD int) (*Nftables, error) {
	nsFD, err := hostnet.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, nsFD)
	if err != nil {
		if errors.Is(err, unix.EPROTONOSUPPORT) { // the kernel has no nfnetlink, which nf_tables needs
			err = fmt.Errorf("%w: %w", steer.ErrNotSupported, err)
		}
		return nil, errors.Join(err, unix.Close(nsFD))
	}
	return &Nftables{nsFD: nsFD, conn: conn}, nil
}

// commit sends a batch. After an error it opens a new socket, because the old one may still receive replies to the batch.
func (n *Nftables) commit(b *batch) error {
	if err := b.send(n.conn); err != nil {
		return errors.Join(err, n.redial())
	}
	return nil
}

func (n *Nftables) redial() error {
	fresh, err := hostnet.Dial(unix.NETLINK_NETFILTER, n.nsFD)
	if err != nil {
		return err
	}
	_ = n.conn.Close()
	n.conn = fresh
	return nil
}

// Close closes the socket; the rules stay.
func (n *Nftables) Close() error { return errors.Join(n.conn.Close(), unix.Close(n.nsFD)) }

// Apply makes the table equal to rs in one transaction. If it already is, Apply changes nothing. Counters stay, and so do leases
// and the exemptions that the plugin added, unless another version gave their set another shape (see reshape).
func (n *Nftables) Apply(rs steer.Ruleset) error {
	_, err := n.Repair(rs)
	return err
}

// Repair is Apply, and also returns the differences that it found, as Verify reports them.
func (n *Nftables) Repair(rs steer.Ruleset) (drift []string, err error) {
	want, err := n.rendered(rs)
	if err != nil {
		return nil, err
	}
	return n.apply(want)
}

var _ steer.ConnectionRecorder = (*Nftables)(nil)

// RecordConnections implements steer.ConnectionRecorder.
func (n *Nftables) RecordConnections(p steer.Pod) (recording bool, err error) {
	note := renderNote(p)
	err = n.retry("note connections", func() error {
		have, err := n.load()
		if err != nil {
			return err
		}
		if len(have.chains) > 0 {
			recording = len(compare(note, have)) == 0
			return nil
		}
		recording = true
		var b batch
		b.change(note, have)
		return n.commit(&b)
	})
	return recording, err
}

func (n *Nftables) apply(want table) (drift []string, err error) {
	err = n.retry("apply rules", func() error {
		have, err := n.load()
		if err != nil {
			return err
		}
		if drift = compare(want, have); len(drift) == 0 {
			return nil
		}
		var b batch
		b.change(want, have)
		return n.commit(&b)
	})
	return drift, err
}

// Ensure adds everything that Missing reports. It never changes or removes a rule or an element.
func (n *Nftables) Ensure(rs steer.Host) error {
	return n.retry("ensure rules", func() error {
		have, err := n.load()
		if err != nil {
			return err
		}
		want, err := n.rendered(rs)
		if err != nil {
			return err
		}
		var b batch
		b.complete(want, have)
		return n.commit(&b)
	})
}

func render(rs steer.Ruleset) table {
	switch rs := rs.(type) {
	case steer.Pod:
		return renderPod(rs)
	case steer.Host:
		return renderHost(rs)
	}
	panic(fmt.Sprintf("no rules for a %T", rs)) // there are no other implementations of Ruleset
}

// rendered returns the table for rs. If a host's description has no detours (nil), it reads them from this netns.
func (n *Nftables) rendered(rs steer.Ruleset) (table, error) {
	if h, ok := rs.(steer.Host); ok && h.Detours == nil {
		var err error
		if h.Detours, err = hostnet.Detours(n.nsFD, steer.OwnLinks()...); err != nil {
			return table{}, err
		}
		rs = h
	}
	return render(rs), nil
}

// Verify returns nil if the table has the same effect as rs. If it differs, the error is a *steer.DriftError that names the
// differences. A dump that overlaps another transaction may contain rules of both generations. If the dump began after the
// kernel had raised the generation number, no flag shows this. So a difference counts only if two reads in a row find it and
// the number has not changed since before the first: then at most one of the two overlaps a transaction.
func (n *Nftables) Verify(rs steer.Ruleset) error {
	want, err := n.rendered(rs)
	if err != nil {
		return err
	}
	var before []string
	var since uint32 // the generation before the read that found them
	return n.retry("verify rules", func() error {
		generation, err := n.Generation()
		if err != nil {
			return err
		}
		have, err := n.load()
		if err != nil {
			return err
		}
		items := compare(want, have)
		if len(items) == 0 {
			return nil
		}
		if now, err := n.Generation(); err != nil {
			return err
		} else if now == since && slices.Equal(items, before) {
			return &steer.DriftError{Items: items}
		}
		before, since = items, generation
		return errUnsettled
	})
}

// Remove deletes the table. If there is none, it succeeds.
func (n *Nftables) Remove() error {
	return n.retry("remove table", func() error {
		var b batch
		b.addTable() // otherwise deleting fails if there is no table
		b.deleteTable()
		return n.commit(&b)
	})
}

// IsUplink reports whether the host table treats this link as leading away from the node, so that clients behind it are not
// served.
func (n *Nftables) IsUplink(name string) (bool, error) {
	return retried(n, "read uplinks", func() (bool, error) {
		have, err := n.elements("uplinks")
		return len(missing([]element{{key: ifname(name)}}, have)) == 0, err
	})
}

// Supported returns an error that wraps steer.ErrNotSupported if the kernel refuses an expression that the tables use. It tries
// a pod table and a host table, each in a transaction that is never committed. The error names what is missing as precisely as
// the kernel does. The result does not depend on the addresses, because both IP families are in one table.
func (n *Nftables) Supported(...netip.Addr) error {
	host := steer.Example()
	host.InterceptNode, host.HealthPort, host.Secret = true, 8080, 1
	var errs []error
	for _, part := range []struct {
		name string
		rs   steer.Ruleset
	}{{"pod table", steer.Pod{Redirects: host.Redirects}}, {"host table", host}} {
		b := batch{table: steer.TableName + "-scratch"}
		b.complete(render(part.rs), loaded{})
		if err := b.rehearse(n.conn); err != nil {
			if err := n.redial(); err != nil {
				return err
			}
			errs = append(errs, fmt.Errorf("%s: %w (Linux %s): %w", part.name, steer.ErrNotSupported, steer.Kernel(), err))
		}
	}
	return errors.Join(errs...)
}

// Present reports whether the neardns table exists.
func (n *Nftables) Present() (bool, error) {
	tables, err := retried(n, "look for table", n.tables)
	return len(tables) > 0, err
}

// retry calls f up to attempts times, until it returns no error or one that no other transaction can have caused.
func (n *Nftables) retry(what string, f func() error) error {
	var err error
	for range attempts {
		var drift *steer.DriftError
		if err = f(); err == nil {
			return nil
		} else if errors.As(err, &drift) {
			return err
		}
		if !hasErrno(err, unix.EINTR, unix.EAGAIN, unix.ENOENT, unix.EEXIST, unix.EBUSY) {
			break
		}
	}
	if hasErrno(err, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%s: %w: %w", what, steer.ErrNotSupported, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// retried is retry for a function with a result.
func retried[T any](n *Nftables, what string, f func() (T, error)) (out T, err error) {
	err = n.retry(what, func() (err error) {
		out, err = f()
		return err
	})
	return out, err
}

func hasErrno(err error, errnos ...syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

// Counters returns the table's counters by name.
func (n *Nftables) Counters() (map[string]steer.Counter, error) {
	return retried(n, "read counters", n.counters)
}

// Leases lists the leases in force.
func (n *Nftables) Leases() ([]steer.LeaseState, error) {
	return retried(n, "read leases", func() (out []steer.LeaseState, err error) {
		for _, f := range families() {
			for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
				elements, err := n.elements("lease_" + p.String() + f.suffix)
				if err != nil {
					return nil, err
				}
				for _, e := range elements {
					if a, ok := netip.AddrFromSlice(e.key); ok && e.expires > 0 {
						out = append(out, steer.LeaseState{Address: a, Protocol: p, Expires: e.expires})
					}
				}
			}
		}
		return out, nil
	})
}

// Exempt adds the addresses of pods that node interception is to ignore, and removes those in gone. An address that is already
// exempt, or not exempt, is no error; nor is a missing table if addresses are only removed.
func (n *Nftables) Exempt(add, gone []netip.Addr) error {
	if len(add)+len(gone) == 0 {
		return nil
	}
	return n.retry("change exempt pods", func() error {
		var b batch
		for _, f := range families() {
			name := "exempt" + f.suffix
			have, err := n.elements(name)
			if err != nil {
				return err
			}
			chosen := func(addrs []netip.Addr, present bool) (out []element) {
				for _, a := range addrs {
					if e := keyElement(a); a.Is4() == f.is4() && present == (len(missing([]element{e}, have)) == 0) {
						out = append(out, e)
					}
				}
				return out
			}
			b.addElements(name, chosen(add, false))
			b.deleteElements(name, chosen(gone, true))
		}
		return n.commit(&b)
	})
}
