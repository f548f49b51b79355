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

// The times of a pod trial. A path fails its trial if two queries were lost during one lease, and that lease was renewed after the second
// was sent: the agent then answered the prober meanwhile, but not the pod. A bypassed path fails with one lost query.
const (
	trialTimeout = time.Second // of a query
	trialQueries = 2           // queries over one protocol, if none is answered
	// renewalTimeout is how long after it sent its last query a trial waits for the lease's renewal.
	renewalTimeout = 2 * time.Second
	maxTrials      = 64 // trials that may run at the same time
)

// Lease returns since when the lease of an address and protocol has been held without a break, and when it was last renewed. held is
// false if there is no lease.
type Lease func(address netip.Addr, p steer.Protocol) (since, renewed time.Time, held bool)

// Trial has those paths of one pod file that are to be tried.
type Trial struct {
	file  podfile.File
	paths []triedPath
}

type triedPath struct {
	podfile.Decision
	podstate.Status
}

// triedIn reports whether the path to r had this state when the trial began. If the state has changed since, the trial's result does not
// count.
func (t Trial) triedIn(r steer.Redirect, state podstate.State) bool {
	return slices.ContainsFunc(t.paths, func(d triedPath) bool { return d.Redirect == r && d.Status.State == state })
}

// Due is what DueTrials returns.
type Due struct {
	Trials  []Trial
	Next    time.Time // when to call DueTrials next; zero: nothing is scheduled
	Fault   error     // why pod tables could not be read, or trials not be run
	Stopped error     // the reason if the adoption of running pods has stopped; else nil
}

// DueTrials reports to podstate the records of the pods' own tables and the state of the leases. It returns the trials that podstate then
// starts, which the caller runs. An adopted pod has its first trial when package adoption allows it. A steered path for which no trial is
// scheduled costs only a few map accesses.
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
				continue // Reconcile will report that Excludes decides otherwise now, and no trial may run until then
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

// leaseEvent returns LeaseGranted if a trial's result would mean something, else LeaseWithdrawn. A steered path needs a lease for one of
// the protocols, because one protocol without answers is enough to bypass the path; any other path needs both.
func leaseEvent(lease Lease, address netip.Addr, state podstate.State) podstate.Event {
	_, _, udp := lease(address, steer.UDP)
	_, _, tcp := lease(address, steer.TCP)
	if udp && tcp || state == podstate.Steered && (udp || tcp) {
		return podstate.LeaseGranted
	}
	return podstate.LeaseWithdrawn
}

// suspected reports whether a trial of a steered path is scheduled. It first corrects a remembered state from before the path was
// steered.
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

// RunTrial tries the paths of one pod file, reports the results to podstate, and steers the pod if that is allowed now. Its queries go from
// the pod's netns and address directly to the steering address, so they need no pod table, and no query of the pod is lost. young is
// the timeout of each query of a young path, which is tried again soon. A trial that cannot be run is repeated, and DueTrials returns its
// error.
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
		return nil //nolint:nilerr // the netns is gone or not visible, so there is nothing to try
	}
	defer ns.Close() //nolint:errcheck // opened only to enter the netns
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
		return nil //nolint:nilerr // the trial was aborted, so it has no result
	}
	if len(results) > 0 {
		errs = append(errs, p.takeResults(t, results, fallback))
	}
	return errors.Join(errs...)
}

// takeResults reports the results of a trial to podstate, and steers the pod at once if it may be. While another program holds iptables'
// lock, it leaves that to the next Reconcile: otherwise each pod in turn would wait for the lock, and Reconcile behind all of them.
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

// tryPath tries one path over UDP and TCP, and returns the event to report. A bypassed path is tried over UDP first, so that a permanent
// policy drops one packet only. A young path that is steered is tried over UDP alone, because over TCP the pod table rewrites the answers
// and so hides them from the trial. Its two queries overlap: with podstate.Retry and the lease's next renewal, a policy is noticed within a
// second.
func (p *Pods) tryPath(ctx context.Context, ns *os.File, t Trial, d triedPath, lease Lease, young time.Duration) (signal, error) {
	protocols, timeout, again := []steer.Protocol{steer.UDP, steer.TCP}, trialTimeout, time.Duration(0)
	if d.Young(time.Now()) {
		timeout = young
		if d.Status.State == podstate.Steered {
			protocols, again = protocols[:1], young/6
		}
	}
	results := make([]verdict, len(protocols))
	errs := make([]error, len(protocols))
	var wg sync.WaitGroup
	for i, proto := range protocols {
		wg.Go(func() { results[i], errs[i] = p.tryProtocol(ctx, ns, t, d, proto, lease, timeout, again) })
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
	return signal{event: podstate.TrialAnswered, reason: "its test queries were answered"}, errors.Join(errs...)
}

// attachmentsOf reads the pod files of all network interfaces in f's netns again. It finds them in the list that read returns, so that it
// need not read all pod files.
func (p *Pods) attachmentsOf(f podfile.File) []podfile.File {
	known, _ := p.read()
	var out []podfile.File
	for _, g := range known {
		if g.NetNSInode != f.NetNSInode {
			continue
		}
		if now, err := podfile.Read(podfile.Path(p.stateDir, g.ContainerID, g.IfName)); err == nil { // leave out a file that is gone
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

// tryProtocol tries one path over one protocol. The queries count as lost only if the agent's lease was held before them and renewed after
// the last, and if the pod's table recorded no answer. With Hidden, it ignores the table's record of UDP answers, because those may be the
// kernel program's. For a bypassed path it sends one query, which counts as lost if it is not answered.
func (p *Pods) tryProtocol(
	ctx context.Context, ns *os.File, t Trial, d triedPath, proto steer.Protocol, lease Lease, timeout, again time.Duration,
) (verdict, error) {
	begun, _, held := lease(d.Redirect.Steering, proto)
	if !held {
		return unknown, nil
	}
	bypassed := d.Status.State == podstate.Bypassed
	newLease := time.Since(begun) < trialTimeout
	queries := trialQueries
	if again > 0 {
		queries = 1
	}
	var sent time.Time
	for range queries {
		if again == 0 {
			// Without this, kube-dns would get the query if the switch bypasses the pod, and would be silent if its own upstream is. A young
			// steered path is tried too often for it. A path that is not bypassed is tried despite an error: the switch seldom bypasses it.
			if err := p.releaseClients(t.file, d.Redirect.Steering, proto); err != nil && bypassed {
				return unknown, err
			}
		}
		sent = time.Now().Add(again)
		answer, err := query(ctx, ns, d.Redirect, proto, timeout, again)
		if err != nil || answer != isLost || bypassed { // without an answer, a bypassed path stays bypassed
			return answer, err
		}
		if newLease {
			return unknown, nil
		}
		if d.Hidden && proto == steer.UDP { // over TCP the table's record counts, because the kernel program answers nothing over TCP
			continue
		}
		if d.Status.State == podstate.Steered { // the pod table has only steered paths
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

// releaseClients makes the switch deliver the next query of a pod that it bypasses because the host's filters dropped its queries.
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

// TryClient tries the path of a client that the switch bypasses: it makes the switch deliver the client's next query, and sends one from
// the pod's netns. If the query passes the host's filters, the switch itself ends the bypass. known is false if the agent knows no
// pod with the client's address, or cannot enter its netns.
func (p *Pods) TryClient(ctx context.Context, c steer.Client) (known bool, err error) {
	files, _ := p.read()
	for _, f := range files {
		if !slices.Contains(f.Addresses, c.Source) {
			continue
		}
		ns, err := enter(f)
		if err != nil {
			continue // the pod is gone, and another one may have its address now
		}
		defer ns.Close() //nolint:errcheck // opened only to enter the netns
		if err := p.Release(c); err != nil {
			return true, err
		}
		_, err = query(ctx, ns, steer.Redirect{Steering: c.Address}, c.Protocol, trialTimeout, 0)
		return true, err
	}
	return false, nil
}

// tableSawAnswer reports whether the pod's own table does not count this path as unanswered. The table rewrites the source of answers to
// the cluster DNS address, so the trial's TCP socket does not receive them.
func (p *Pods) tableSawAnswer(ns *os.File, t Trial, d triedPath, proto steer.Protocol) (bool, error) {
	files, _ := p.read()
	files = slices.DeleteFunc(slices.Clone(files), func(f podfile.File) bool { return f.NetNSInode != t.file.NetNSInode })
	bypassed, known, err := p.bypassedBy(&sandbox{files: files, ns: ns})
	return known && !slices.Contains(bypassed, steer.PodWay{ClusterDNS: d.Redirect.ClusterDNS, Protocol: proto}), err
}

// query sends one query of a trial from the netns ns and waits for the answer. It uses a new socket, and over TCP a new connection. If
// again is not 0, it repeats the query over UDP after that time; timeout is the time of both.
func query(ctx context.Context, ns *os.File, r steer.Redirect, proto steer.Protocol, timeout, again time.Duration) (verdict, error) {
	to := netip.AddrPortFrom(r.Steering, 53)
	message := prober.NewTrial()
	if proto == steer.TCP {
		return queryOverTCP(ctx, ns, to, message, timeout)
	}
	var conn *net.UDPConn
	err := hostnet.InNetNS(int(ns.Fd()), func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(unspecified(to.Addr()), 0)))
		return err
	})
	if err != nil {
		return unknown, err
	}
	defer conn.Close() //nolint:errcheck // the result is known
	waits := []time.Duration{timeout}
	if again > 0 {
		waits = []time.Duration{again, timeout - again}
	}
	buf := make([]byte, 512)
	for _, wait := range waits {
		_ = conn.SetDeadline(time.Now().Add(wait))
		if _, err := conn.WriteToUDPAddrPort(message.Wire(), to); err != nil {
			return isLost, nil //nolint:nilerr // without a route, the query counts as lost
		}
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				break // the wait has passed
			}
			if !message.Answered(buf[:n]) {
				continue
			}
			switch from.Addr().Unmap() {
			case r.Steering:
				return isAnswered, nil
			case r.ClusterDNS:
				// The pod table rewrote the answer, or kube-dns answered because the switch bypasses the pod. The query shows nothing.
				return unknown, nil
			}
		}
	}
	return isLost, nil
}

// queryOverTCP does what query does, over TCP. An established connection does not count as an answer, because a filter may drop later
// packets. If the agent closes the connection without an answer, it probably had no free slot for this client's TCP connection, so the
// result is unknown.
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
	defer conn.Close() //nolint:errcheck // the result is known
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
