package pods

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// The times of a pod trial. Two queries of a steered pod that were lost during one lease, and a renewal of that lease after the
// second was sent, are evidence: the prober's path is open and the pod's is not. The prober's own queries are answered within milliseconds.
const (
	trialTimeout = time.Second
	trialQueries = 2
	// renewalTimeout is how long a trial waits for the renewal of the lease after it sent its last query.
	renewalTimeout = 2 * time.Second
	maxTrials      = 64 // at a time
)

// Lease reports since when the lease for queries to an address has been granted without a break, and when it was last renewed. held is
// false if there is no lease.
type Lease func(address netip.Addr, p steer.Protocol) (since, renewed time.Time, held bool)

// Trial is one attachment with the paths to try.
type Trial struct {
	file  podfile.File
	paths []triedPath
}

type triedPath struct {
	podfile.Decision
	podstate.Status
}

// triedIn reports whether the path had this state when the trial began: a result of another state shows nothing about this one.
func (t Trial) triedIn(r steer.Redirect, state podstate.State) bool {
	return slices.ContainsFunc(t.paths, func(d triedPath) bool { return d.Redirect == r && d.Status.State == state })
}

// Due are the trials to run now.
type Due struct {
	Trials  []Trial
	Next    time.Time // of the next one; zero: none is scheduled
	Fault   error     // why trials could not be run
	Stopped error     // why the adoption of running pods has stopped; nil if it has not
}

// DueTrials reports the evidence of pods' own tables and of the leases to podstate, and returns the trials that it starts, which the caller
// runs. A running pod that is adopted has its first trial when package adoption allows it. A steered path without suspicion costs one map
// access.
func (p *Pods) DueTrials(lease Lease, fallback func(netip.Addr) Fallback) Due {
	now := time.Now()
	files, _ := p.read()
	tablesErr := p.reportTables(files, now)
	waiting, next := p.paceAdoption(files, lease, fallback, now)
	due := Due{Next: next, Stopped: p.due.adoption.Stopped()}
	known := map[path]bool{}
	for _, f := range files {
		one := Trial{file: f}
		for _, d := range f.Decisions {
			state, at := StateOf(d), path{keyOf(f), d.Redirect}
			known[at] = true
			if waiting[at.key] && state == podstate.Untried ||
				state == 0 || state == podstate.Unselected || state == podstate.Steered && !p.suspected(at, now) {
				continue
			}
			if _, differs := p.selection(f, d); differs {
				continue // Reconcile reports it, and until then no trial may run
			}
			p.report(f, d, leaseEvent(lease, d.Redirect.Steering, state), now)
			s, do := p.report(f, d, podstate.Heartbeat, now)
			if do&podstate.Trial != 0 {
				one.paths = append(one.paths, triedPath{d, s})
			}
			if !s.Next.IsZero() && !s.NoLease && (due.Next.IsZero() || s.Next.Before(due.Next)) {
				due.Next = s.Next
			}
		}
		if len(one.paths) > 0 {
			due.Trials = append(due.Trials, one)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.paths, func(at path, _ podstate.Status) bool { return !known[at] })
	due.Fault = errors.Join(tablesErr, p.failed.fault(files))
	return due
}

// leaseEvent reports whether a trial would show anything. Of a steered path one lost protocol is enough; any other path needs an answer
// over both.
func leaseEvent(lease Lease, address netip.Addr, state podstate.State) podstate.Event {
	_, _, udp := lease(address, steer.UDP)
	_, _, tcp := lease(address, steer.TCP)
	if udp && tcp || state == podstate.Steered && (udp || tcp) {
		return podstate.LeaseGranted
	}
	return podstate.LeaseWithdrawn
}

// suspected reports whether a trial of a steered path is scheduled. While the path was being steered, its file had another state.
func (p *Pods) suspected(at path, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.paths[at]
	if known && s.State != podstate.Steered {
		s = s.In(podstate.Steered, now)
		p.paths[at] = s
	}
	return !s.Next.IsZero()
}

// RunTrial tries the paths of one attachment, reports the results to podstate, and steers the pod if it may be. It sends queries from the
// pod's netns, with its address, to the steering address: this needs no pod table and costs the pod no query. young is the timeout of
// each query from a young path, which is tried again soon. A trial that could not be run is repeated, and DueTrials returns its error.
func (p *Pods) RunTrial(ctx context.Context, t Trial, lease Lease, young time.Duration, fallback func(netip.Addr) Fallback) {
	err := p.runTrial(ctx, t, lease, young, fallback)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed.note(keyOf(t.file), err)
	for _, d := range t.paths {
		at := path{keyOf(t.file), d.Redirect}
		if s := p.paths[at]; err != nil && s.State == d.Status.State {
			p.paths[at], _ = s.On(podstate.TrialFailed, now)
		}
	}
}

func (p *Pods) runTrial(ctx context.Context, t Trial, lease Lease, young time.Duration, fallback func(netip.Addr) Fallback) error {
	p.slots <- struct{}{}
	defer func() { <-p.slots }()
	ns, err := enter(t.file)
	if err != nil {
		return nil //nolint:nilerr // gone: its DEL is under way
	}
	defer ns.Close() //nolint:errcheck // only to enter
	if err := p.endLeaving(t.file); err != nil {
		return fmt.Errorf("%s: %w", Name(t.file), err)
	}
	var mu sync.Mutex // guards the results
	results := map[steer.Redirect]signal{}
	var errs []error
	var wg sync.WaitGroup
	for _, d := range t.paths {
		wg.Go(func() {
			s, err := p.tryPath(ctx, ns, t, d, lease, young)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", Name(t.file), err))
				return
			}
			results[d.Redirect] = s
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the trial's end shows nothing
	}
	if len(results) > 0 {
		errs = append(errs, p.takeResults(t, results, fallback))
	}
	return errors.Join(errs...)
}

// takeResults reports the results of a trial to podstate, and has the pod steered without waiting for the next Reconcile, unless another
// program holds iptables' lock: one pod at a time would wait for it, and Reconcile behind all of them.
func (p *Pods) takeResults(t Trial, results map[steer.Redirect]signal, fallback func(netip.Addr) Fallback) error {
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	if t.file.NetNSInode == hostInode {
		return nil
	}
	return p.inSandbox(t.file, func(box *sandbox) error {
		changed, err := p.decide(box, func(f podfile.File, d podfile.Decision) (signal, bool) {
			s, tried := results[d.Redirect]
			return s, tried && keyOf(f) == keyOf(t.file) && t.triedIn(d.Redirect, StateOf(d))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", Name(t.file), err)
		}
		if !changed || p.busy.Load() {
			return nil
		}
		return errors.Join(p.reconcile(box, host, fallback)...)
	})
}

// tryPath tries one path over both protocols. A bypassed path is tried over UDP first, with one packet, so that a lasting policy drops no
// more than that. A young path that is steered is tried over UDP alone, because over TCP its table hides the answers from the trial.
func (p *Pods) tryPath(ctx context.Context, ns *os.File, t Trial, d triedPath, lease Lease, young time.Duration) (signal, error) {
	protocols, timeout := []steer.Protocol{steer.UDP, steer.TCP}, trialTimeout
	if d.Young(time.Now()) {
		timeout = young
	}
	if d.Status.State == podstate.Steered && d.Young(time.Now()) {
		protocols = protocols[:1]
	}
	results := make([]verdict, len(protocols))
	errs := make([]error, len(protocols))
	var wg sync.WaitGroup
	for i, proto := range protocols {
		wg.Go(func() { results[i], errs[i] = p.tryProtocol(ctx, ns, t, d, proto, lease, timeout) })
		if d.Status.State == podstate.Bypassed {
			if wg.Wait(); results[i] != isAnswered {
				break
			}
		}
	}
	wg.Wait()
	var lost []string
	for i, r := range results {
		if r == isLost {
			lost = append(lost, protocols[i].String())
		}
	}
	switch {
	case len(lost) > 0:
		return signal{podstate.TrialUnanswered, fmt.Sprintf("its queries to %s over %s are not answered, though the agent answers others: "+
			"a policy, a program at its link or a firewall drops them or the answers; let pods reach that address",
			d.Redirect.Steering, strings.Join(lost, " and ")), lost}, errors.Join(errs...)
	case slices.ContainsFunc(results, func(r verdict) bool { return r != isAnswered }):
		return signal{event: podstate.TrialVoid}, errors.Join(errs...)
	}
	return signal{event: podstate.TrialAnswered, reason: "its trial was answered"}, errors.Join(errs...)
}

// attachmentsOf reads the attachments of f's netns again. Many pods may be tried at once, so the others are not read for each.
func (p *Pods) attachmentsOf(f podfile.File) []podfile.File {
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

// tryProtocol tries one path over one protocol. No query counts as lost while the agent itself is in doubt, nor if the pod's table saw an
// answer, unless that is hidden: it may have seen the kernel program's.
func (p *Pods) tryProtocol(
	ctx context.Context, ns *os.File, t Trial, d triedPath, proto steer.Protocol, lease Lease, timeout time.Duration,
) (verdict, error) {
	begun, _, held := lease(d.Redirect.Steering, proto)
	if !held {
		return unknown, nil
	}
	if d.Status.State == podstate.Bypassed {
		if err := p.releaseClients(t.file, d.Redirect.Steering, proto); err != nil {
			return unknown, err
		}
		return query(ctx, ns, d.Redirect, proto, timeout) // lost or void, it stays bypassed
	}
	newLease := time.Since(begun) < trialTimeout
	var sent time.Time
	for range trialQueries {
		sent = time.Now()
		answer, err := query(ctx, ns, d.Redirect, proto, timeout)
		if err != nil || answer != isLost {
			return answer, err
		}
		if newLease {
			return unknown, nil
		}
		if d.Hidden && proto == steer.UDP { // the kernel program answers nothing over TCP
			continue
		}
		if d.Status.State == podstate.Steered { // else the table does not have this path
			if seen, err := p.tableSawAnswer(ns, t, d, proto); err != nil || seen {
				return isAnswered, err
			}
		}
	}
	for time.Since(sent) < renewalTimeout && ctx.Err() == nil {
		since, renewed, held := lease(d.Redirect.Steering, proto)
		if !held || !since.Equal(begun) {
			return unknown, nil
		}
		if renewed.After(sent) {
			return isLost, nil
		}
		tick.Pause(ctx, trialTimeout/50)
	}
	return unknown, nil
}

// releaseClients has the switch deliver the next query of a pod that it bypasses because of the host's evidence.
func (p *Pods) releaseClients(f podfile.File, address netip.Addr, proto steer.Protocol) error {
	for _, source := range f.Addresses {
		if p.Release != nil && source.Is4() == address.Is4() {
			if err := p.Release(steer.Client{Source: source, Protocol: proto, Address: address}); err != nil {
				return err
			}
		}
	}
	return nil
}

// TryClient tries the path of a client that the switch bypasses: it releases the client and sends a query from the pod's netns. If the
// query passes the host's filters, the switch clears the client itself. false: no known pod has the client's address.
func (p *Pods) TryClient(ctx context.Context, c steer.Client) (known bool, err error) {
	files, _ := p.read()
	for _, f := range files {
		if !slices.Contains(f.Addresses, c.Source) {
			continue
		}
		ns, err := enter(f)
		if err != nil {
			continue // gone, and another pod may have the address
		}
		defer ns.Close() //nolint:errcheck // only to enter
		if err := p.Release(c); err != nil {
			return true, err
		}
		_, err = query(ctx, ns, steer.Redirect{Steering: c.Address}, c.Protocol, trialTimeout)
		return true, err
	}
	return false, nil
}

// tableSawAnswer reports whether the pod's own table saw an answer. While it steers, it gives answers the source that the pod expects, so
// that no socket of a trial takes them.
func (p *Pods) tableSawAnswer(ns *os.File, t Trial, d triedPath, proto steer.Protocol) (bool, error) {
	files, _ := p.read()
	files = slices.DeleteFunc(slices.Clone(files), func(f podfile.File) bool { return f.NetNSInode != t.file.NetNSInode })
	bypassed, known, err := p.bypassedBy(&sandbox{files: files, ns: ns})
	return known && !slices.Contains(bypassed, steer.PodWay{ClusterDNS: d.Redirect.ClusterDNS, Protocol: proto}), err
}

// query sends one query and waits for the answer, over TCP on a connection of its own.
func query(ctx context.Context, ns *os.File, r steer.Redirect, proto steer.Protocol, timeout time.Duration) (verdict, error) {
	to := netip.AddrPortFrom(r.Steering, 53)
	message := prober.NewTrial()
	if proto == steer.TCP {
		return queryOverTCP(ctx, ns, to, message, timeout)
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
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.WriteToUDPAddrPort(message.Wire(), to); err != nil {
		return isLost, nil //nolint:nilerr // without a route the query is lost
	}
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case err != nil:
			return isLost, nil //nolint:nilerr // the deadline
		case !message.Answered(buf[:n]):
		case from.Addr().Unmap() == r.Steering:
			return isAnswered, nil
		case from.Addr().Unmap() == r.ClusterDNS:
			// From the pod table, or from kube-dns because the switch bypasses the pod: no verdict.
			return unknown, nil
		}
	}
}

// queryOverTCP is query over TCP. A connection alone is no answer: a filter may drop what follows. If the agent ends the connection
// without an answer, it has no slot for this client now: the result is unknown.
func queryOverTCP(ctx context.Context, ns *os.File, to netip.AddrPort, message prober.Trial, timeout time.Duration) (verdict, error) {
	deadline := time.Now().Add(timeout)
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
	wire := message.Wire()
	if _, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err == nil { //nolint:gosec // short
		answer := make([]byte, 2+len(wire))
		if _, err = io.ReadFull(conn, answer); err == nil && message.Answered(answer[2:]) {
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
