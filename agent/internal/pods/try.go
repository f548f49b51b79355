package pods

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// How Try asks. Two questions lost while the lease was held, and proven after the second, are evidence: the way is open for the
// prober and closed for the pod. The prober's own questions are answered within milliseconds.
const (
	tryTimeout = time.Second
	tryTimes   = 2
	// trySlack is how long Try waits for the lease's next proof.
	trySlack = 2 * time.Second
	// tryAtOnce bounds how many pods are asked from at the same time.
	tryAtOnce = 16
)

// trialInterval is the time from one pod trial of a bypassed pod to the next. It does not grow, so that a pod whose path works again
// is steered within 15 s: the rest is for a trial that is under way, and for the pod's table.
const trialInterval = 10 * time.Second

// trial is when a bypassed pod is tried next.
type trial struct{ next time.Time }

// at reports whether the trial is due, and then schedules the next one.
func (t trial) at(now time.Time) (due bool, after trial) {
	switch {
	case t.next.IsZero(): // bypassed a moment ago, or by an earlier agent
		return false, trial{now.Add(trialInterval)}
	case now.Before(t.next):
		return false, t
	}
	return true, trial{now.Add(trialInterval)}
}

// Lease tells of the lease that questions to an address are delivered under: since when it is held without a break, and when it
// was last proven; false where it is not held.
type Lease func(address netip.Addr, p steer.Protocol) (since, proven time.Time, held bool)

// Try asks from the netns of pods, with their own addresses, where that is due: of a suspect, whose table gave it back, and of
// those that were given back. Who is not answered is given back, who is answered waits no more. It asks the steering address,
// which needs no pod table, and so costs the pod no question. changed tells that pods may be steered now.
func (p *Pods) Try(ctx context.Context, lease Lease) (changed bool, err error) {
	due := p.due(time.Now())
	if len(due) == 0 {
		return false, nil
	}
	var mu sync.Mutex // guards the results
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, tryAtOnce)
	for _, one := range due {
		f := one.File
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			did, tryErr := p.try(ctx, f, one.inKernel, lease)
			mu.Lock()
			defer mu.Unlock()
			changed = changed || did
			if tryErr != nil {
				errs = append(errs, fmt.Errorf("%s: %w", Name(f), tryErr))
			}
		})
	}
	wg.Wait()
	return changed, errors.Join(errs...)
}

// suspect is an attachment to ask from.
type suspect struct {
	podfile.File
	suspicion
}

// due lists the attachments to ask from now. Suspects are asked from once; those that were given back again and again; those that ran
// before neardns came until there is a verdict.
func (p *Pods) due(now time.Time) []suspect {
	files, _ := p.read()
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []suspect
	waiting := map[key]bool{}
	for _, f := range files {
		k := keyOf(f)
		if slices.ContainsFunc(f.Decisions, unanswered) {
			waiting[k] = true
			isDue, after := p.trials[k].at(now)
			p.trials[k] = after
			if isDue {
				out = append(out, suspect{File: f})
				continue
			}
		}
		s, suspected := p.suspects[k]
		if suspected && len(f.In(podfile.Steered)) > 0 || slices.ContainsFunc(f.Decisions, untried) {
			out = append(out, suspect{f, s})
		}
	}
	for k := range p.trials {
		if !waiting[k] {
			delete(p.trials, k)
		}
	}
	clear(p.suspects)
	return out
}

// try asks by each way of one attachment, and acts on what comes of it.
func (p *Pods) try(ctx context.Context, f podfile.File, inKernel bool, lease Lease) (changed bool, err error) {
	ns, err := enter(f)
	if err != nil {
		return false, nil //nolint:nilerr // gone: its DEL is under way
	}
	defer ns.Close()  //nolint:errcheck // only to enter
	var mu sync.Mutex // guards the results
	lost, answered := map[steer.Redirect][]string{}, map[steer.Redirect]bool{}
	var errs []error
	var asked []podfile.Decision
	for _, d := range f.Decisions {
		if d.State == podfile.Steered || waits(d) {
			asked = append(asked, d)
			answered[d.Redirect] = waits(d)
		}
	}
	var wg sync.WaitGroup
	for _, d := range asked {
		for _, proto := range []steer.Protocol{steer.UDP, steer.TCP} {
			wg.Go(func() {
				v, err := p.ask(ctx, ns, f.NetNSInode, d, proto, inKernel && proto == steer.UDP, lease)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				if v == isLost {
					lost[d.Redirect] = append(lost[d.Redirect], proto.String())
				}
				answered[d.Redirect] = answered[d.Redirect] && v == isAnswered
			})
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	for _, protocols := range lost {
		slices.Sort(protocols)
	}
	if ctx.Err() != nil || len(lost) == 0 && !slices.Contains(slices.Collect(maps.Values(answered)), true) {
		return false, nil
	}
	p.tend.Lock()
	defer p.tend.Unlock()
	return p.settle(f, lost, answered)
}

// settle carries out what the questions said, on the sandbox as it is now.
func (p *Pods) settle(f podfile.File, lost map[steer.Redirect][]string, answered map[steer.Redirect]bool) (changed bool, err error) {
	for box := range sandboxes(p.beside(f)) {
		if !slices.ContainsFunc(box.files, func(g podfile.File) bool { return keyOf(g) == keyOf(f) }) || box.ns == nil {
			box.close()
			continue
		}
		defer box.close()
		why := func(d podfile.Decision) (string, []string) {
			if protocols := lost[d.Redirect]; len(protocols) > 0 {
				return fmt.Sprintf("its questions to %s over %s are not answered, though the agent answers others: a policy, a program at its link or a firewall drops them or the answers; let pods reach that address",
					d.Redirect.Steering, words(protocols)), protocols
			}
			return "", nil
		}
		err = p.giveBack(&box, why)
		for i := range box.files {
			g := box.files[i]
			g.Decisions = slices.Clone(g.Decisions)
			now, refused := false, ""
			for j := range g.Decisions {
				d := &g.Decisions[j]
				if waits(*d) && answered[d.Redirect] {
					d.Reason, d.Unanswered, d.Untried, now = "its questions are answered", nil, false, true
				} else if reason, protocols := why(*d); d.Untried && reason != "" {
					d.Reason, d.Unanswered, d.Untried, refused = reason, protocols, false, reason
				}
			}
			if !now && refused == "" {
				continue
			}
			if noteErr := p.note(g); noteErr != nil && !errors.Is(noteErr, fs.ErrNotExist) {
				return changed, errors.Join(err, noteErr)
			}
			p.Outdate()
			if refused != "" {
				p.log.Warn("running pod not steered", "pod", g.PodNamespace+"/"+g.PodName, "container_id", g.ContainerID, "reason", refused)
			}
			if !now {
				continue
			}
			changed = true
			p.log.Info("questions of a pod are answered", "pod", g.PodNamespace+"/"+g.PodName, "container_id", g.ContainerID)
		}
		return changed, err
	}
	return false, nil
}

// beside reads the attachments of one netns anew. A node full of pods may be tried at once, so the others are not read for each.
func (p *Pods) beside(f podfile.File) []podfile.File {
	known, _ := p.read()
	var out []podfile.File
	for _, g := range known {
		if g.NetNSInode != f.NetNSInode {
			continue
		}
		if now, err := podfile.Read(podfile.Path(p.stateDir, g.ContainerID, g.IfName)); err == nil { // else it is gone
			out = append(out, now)
		}
	}
	return out
}

type verdict int

const (
	unknown verdict = iota
	isAnswered
	isLost
)

// ask asks one redirect's steering address from a pod's netns. No question is held to be lost while the agent itself is in doubt, nor
// where the pod's table saw an answer, unless that is hidden: it may have seen the kernel's.
func (p *Pods) ask(ctx context.Context, ns *os.File, inode uint64, d podfile.Decision, proto steer.Protocol, hidden bool,
	lease Lease) (verdict, error) {
	begun, _, held := lease(d.Redirect.Steering, proto)
	if !held {
		return unknown, nil
	}
	young := time.Since(begun) < tryTimeout
	for range tryTimes {
		answer, err := question(ctx, ns, d.Redirect, proto)
		if err != nil || answer != isLost {
			return answer, err
		}
		if young {
			return unknown, nil
		}
		if hidden {
			continue
		}
		if heard, err := p.heard(ns, inode, d, proto); err != nil || heard {
			return isAnswered, err
		}
	}
	asked := time.Now()
	for time.Since(asked) < trySlack && ctx.Err() == nil {
		since, proven, held := lease(d.Redirect.Steering, proto)
		if !held || !since.Equal(begun) {
			return unknown, nil
		}
		if proven.After(asked) {
			return isLost, nil
		}
		tick.Pause(ctx, tryTimeout/10)
	}
	return unknown, nil
}

// heard tells whether the pod table saw an answer. While it stands, it gives answers the source that the pod expects, which is not
// the one that was asked here, so that no socket takes them.
func (p *Pods) heard(ns *os.File, inode uint64, d podfile.Decision, proto steer.Protocol) (bool, error) {
	if d.State != podfile.Steered {
		return false, nil
	}
	table, err := p.backend.Open(int(ns.Fd()))
	if err != nil {
		return false, err
	}
	defer table.Close() //nolint:errcheck // only read
	w, ok := table.(steer.Witness)
	if !ok {
		return false, nil
	}
	files, _ := p.read()
	files = slices.DeleteFunc(slices.Clone(files), func(f podfile.File) bool { return f.NetNSInode != inode })
	lost, err := w.Unanswered(podfile.Table(files...))
	return !slices.Contains(lost, steer.PodWay{ClusterDNS: d.Redirect.ClusterDNS, Protocol: proto}), err
}

// question sends one query and waits for the answer, over TCP on a connection of its own.
func question(ctx context.Context, ns *os.File, r steer.Redirect, proto steer.Protocol) (verdict, error) {
	to := netip.AddrPortFrom(r.Steering, 53)
	query := prober.NewTrial()
	if proto == steer.TCP {
		return stream(ctx, ns, to, query)
	}
	var conn *net.UDPConn
	var opened error
	err := hostnet.InNetNS(int(ns.Fd()), func() error {
		conn, opened = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(unspecified(to.Addr()), 0)))
		return nil
	})
	if err = errors.Join(err, opened); err != nil {
		return unknown, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written to keep
	_ = conn.SetDeadline(time.Now().Add(tryTimeout))
	if _, err := conn.WriteToUDPAddrPort(query.Wire(), to); err != nil {
		return isLost, nil //nolint:nilerr // without a route the query is lost
	}
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case err != nil:
			return isLost, nil //nolint:nilerr // the deadline
		case !query.Answered(buf[:n]):
		case from.Addr().Unmap() == r.Steering:
			return isAnswered, nil
		case from.Addr().Unmap() == r.ClusterDNS:
			// From the pod table, or from kube-dns because the switch bypasses the pod: no verdict.
			return unknown, nil
		}
	}
}

// stream is question over TCP. A connection alone is no answer: a filter may drop what follows. If the agent ends the connection
// without an answer, it has no slot for this client now, which says nothing of the path.
func stream(ctx context.Context, ns *os.File, to netip.AddrPort, query prober.Trial) (verdict, error) {
	deadline := time.Now().Add(tryTimeout)
	var conn net.Conn
	var dialed error
	err := hostnet.InNetNS(int(ns.Fd()), func() error {
		conn, dialed = (&net.Dialer{Deadline: deadline}).DialContext(ctx, "tcp", to.String())
		return nil
	})
	switch {
	case err != nil:
		return unknown, err
	case dialed != nil:
		return isLost, nil
	}
	defer conn.Close() //nolint:errcheck // nothing was written to keep
	_ = conn.SetDeadline(deadline)
	wire := query.Wire()
	if _, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err == nil { //nolint:gosec // a short query
		answer := make([]byte, 2+len(wire))
		if _, err = io.ReadFull(conn, answer); err == nil && query.Answered(answer[2:]) {
			return isAnswered, nil
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return isLost, nil
	}
	return unknown, nil
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
