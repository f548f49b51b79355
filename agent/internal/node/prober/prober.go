// Package prober sends the agent's probes, which renew the leases, and the queries of the fallback check, from a network set up like a
// pod's: its own netns and veth with a pod table. Its queries take the pods' whole path (pod table, veth, the host's switch, its INPUT or
// its translation), so an answer means that pods get theirs.
//
// It never renews a lease itself, and leaves nothing on the node: the netns has no name, so it and both ends of the veth end with the
// process, however that ends. In node-cache mode it may lack the capability to make a netns. Then it queries from addresses of the host's
// netns, as the node's own processes do (D-031): an answer does not show that INPUT admits pods.
//
// Failure policy: a probe reports a Result and never retries; the caller decides what it means. Ensure makes whatever is missing, and is
// called at each check and after each fault.
package prober

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/lifecycle/instancelock"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Config describes the prober. Redirects and Locals decide which families it speaks.
type Config struct {
	Redirects []steer.Redirect
	Locals    []netip.Addr
	Rules     rules.Kind // the back end of the prober's pod table
	HostNetNS int        // fd of the host's netns, kept open by the caller until Close; 0: the calling thread's
	Log       *slog.Logger
}

// ErrHeld means that another live process has the prober's lock in this netns: an agent that is being replaced, or a surplus one. The error
// around it names the process.
var ErrHeld = errors.New("another agent's prober is running here")

// errClosed answers calls after Close.
var errClosed = errors.New("prober is closed")

// Prober sends queries as a pod would. All methods may be called at the same time.
type Prober struct {
	log      *slog.Logger
	rules    rules.Kind
	host     host
	lock     *os.File // the prober's lock of this netns; nil: not held
	netns    *netns
	inside   inside // unused without a netns of the prober's own
	hostOnly bool   // without one

	repair   sync.Mutex // serialises Ensure, Reconfigure and Close; held while the kernel is changed, and guards the field below
	repaired []string   // what was repaired since it was last cleared

	mu        sync.Mutex // guards the fields below; held for moments only, so that a slow repair delays no probe
	redirects []steer.Redirect
	locals    []netip.Addr
	sockets   map[netip.Addr]*datagrams // UDP sockets from the probe source, by target
	closed    bool
}

// New takes the prober's lock and makes its network. It returns an error around ErrHeld if another process has the lock.
//
// The netns takes CAP_SYS_ADMIN. Redirects need it for their pod table; without redirects the prober also works in the host's netns.
func New(cfg Config) (*Prober, error) {
	p, err := openProber(cfg, false)
	if len(cfg.Redirects) == 0 && errors.Is(err, unix.EPERM) {
		return openProber(cfg, true)
	}
	return p, err
}

func openProber(cfg Config, bare bool) (*Prober, error) {
	p := &Prober{log: cfg.Log, rules: cfg.Rules, hostOnly: bare, redirects: slices.Clone(cfg.Redirects), locals: slices.Clone(cfg.Locals),
		sockets: map[netip.Addr]*datagrams{}}
	if err := p.prepare(cfg.HostNetNS); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the prober: %w", err), p.Close())
	}
	return p, nil
}

func (p *Prober) prepare(hostNetNS int) (err error) {
	if p.host, err = openHost(hostNetNS); err != nil {
		return err
	}
	if p.lock, err = takeLock(p.host); err != nil {
		return err
	}
	enter := newNetNS
	if p.hostOnly {
		enter = func() error { return joinNetNS(hostNetNS) }
	}
	if p.netns, err = startNetNS(enter); err != nil {
		return err
	}
	if !p.hostOnly {
		if p.inside, err = openInside(p.netns, p.rules); err != nil {
			return err
		}
	}
	return p.ensure()
}

// Ensure repairs the prober's link, addresses, routes and rules. It is idempotent, and writes nothing if all are right.
func (p *Prober) Ensure() error {
	_, err := p.Repair()
	return err
}

// Repair is Ensure that also describes whether it had to make the link or the pod table again.
func (p *Prober) Repair() (repaired string, err error) {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.repaired = nil
	if err := p.ensure(); err != nil {
		return "", fmt.Errorf("repair the prober: %w", err)
	}
	return strings.Join(p.repaired, ", "), nil
}

// Reconfigure replaces the redirects and local addresses, then does what Ensure does.
func (p *Prober) Reconfigure(redirects []steer.Redirect, locals []netip.Addr) error {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.mu.Lock()
	p.redirects, p.locals = slices.Clone(redirects), slices.Clone(locals)
	p.mu.Unlock()
	// A probe in flight must not fail because of this: three reloads in a row would cost the lease.
	p.endSockets((*datagrams).retire)
	if err := p.ensure(); err != nil {
		return fmt.Errorf("reconfigure the prober: %w", err)
	}
	return nil
}

// endSockets ends the sockets kept for targets. The next probe opens a new one, and none is left for a target that is gone.
func (p *Prober) endSockets(end func(*datagrams)) {
	p.mu.Lock()
	gone := p.sockets
	p.sockets = map[netip.Addr]*datagrams{}
	p.mu.Unlock()
	for _, s := range gone {
		end(s)
	}
}

// Close removes everything. A probe in flight fails. Close may be called twice.
func (p *Prober) Close() error {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.endSockets((*datagrams).close)
	var errs []error
	if p.lock != nil {
		// Only its owner may delete the link.
		errs = append(errs, p.host.RemoveVeth(steer.ProberInterface))
	}
	errs = append(errs, p.inside.close())
	if p.netns != nil {
		p.netns.close()
	}
	if p.lock != nil {
		errs = append(errs, p.lock.Close()) // last, because from here on a successor may begin
	}
	p.host.Close()
	p.lock, p.netns, p.inside, p.host = nil, nil, inside{}, host{}
	return errors.Join(errs...)
}

// RemoveLeftovers removes what a killed prober left: its link, if it had no netns of its own. It returns an error around ErrHeld if a
// prober is running.
func RemoveLeftovers() error {
	h, err := openHost(0)
	if err != nil {
		return err
	}
	defer h.Close()
	lock, err := takeLock(h)
	if err != nil {
		return err
	}
	return errors.Join(h.RemoveVeth(steer.ProberInterface), lock.Close())
}

// takeLock takes the prober's lock of a netns, until the file is closed. The lock ends with the process, as the prober's link does, so it
// distinguishes a dead predecessor's link from a live one's.
func takeLock(h host) (lock *os.File, err error) {
	err = h.Do(func() (err error) {
		if lock, err = instancelock.Take(steer.ProberInterface); errors.Is(err, instancelock.ErrHeld) {
			return fmt.Errorf("%w: stop it first: %w", ErrHeld, err)
		}
		return err
	})
	return lock, err
}

// ensure is called with p.repair held, or before any other method.
func (p *Prober) ensure() error {
	p.mu.Lock()
	redirects, locals, closed := p.redirects, p.locals, p.closed
	p.mu.Unlock()
	if closed {
		return errClosed
	}
	want := familiesOf(redirects, locals)
	if p.hostOnly {
		return p.ensureHostOnly(redirects, want)
	}
	made, err := p.host.ensureLink(p.inside)
	if err != nil {
		return err
	}
	p.noteMade(made)
	if err := p.inside.ensure(want); err != nil {
		return fmt.Errorf("prober's netns: %w", err)
	}
	if err := p.host.ensure(want); err != nil {
		return fmt.Errorf("interface %s: %w", steer.ProberInterface, err)
	}
	if err := p.inside.awaitSettled(p.host, want); err != nil {
		return err
	}
	drift, err := p.inside.table.Repair(steer.Pod{Redirects: redirects, Always: true})
	if err != nil {
		return fmt.Errorf("prober's pod table: %w", err)
	}
	if len(drift) > 0 {
		p.repaired = append(p.repaired, "its pod table")
	}
	return nil
}

// ensureHostOnly is ensure for a prober without a netns.
func (p *Prober) ensureHostOnly(redirects []steer.Redirect, want []family) error {
	if len(redirects) > 0 {
		return fmt.Errorf("%d redirects need a pod table, and so a netns of the prober's own: grant the container SYS_ADMIN", len(redirects))
	}
	made, err := p.host.ensureSources(want)
	p.noteMade(made)
	return err
}

func (p *Prober) noteMade(made bool) {
	if made {
		p.repaired = append(p.repaired, "made "+steer.ProberInterface)
		p.log.Debug("prober link made", "interface", steer.ProberInterface)
	}
}

// Probe queries target, a cluster DNS address or a local address, for the instance that answers there, and waits until ctx ends. UDP probes
// of one target run one after the other; all others run at the same time.
func (p *Prober) Probe(ctx context.Context, target netip.Addr, protocol steer.Protocol) Result {
	q := newQuestion()
	source := steer.ProbeSource(target.Is4())
	switch protocol {
	case steer.UDP:
		s, err := p.datagramsTo(target)
		if err != nil {
			return resultOfContext(ctx, err)
		}
		return q.judge(s.exchange(ctx, q.wire, q.matches))
	case steer.TCP:
		ns, err := p.openNetNS()
		if err != nil {
			return resultOfContext(ctx, err)
		}
		return q.judge(openAndQuery(ctx, ns, source, target, q.wire))
	}
	return Result{Failure: Network, Err: fmt.Errorf("cannot probe over %s", protocol)}
}

// CheckFallback queries clusterDNS for name's address over UDP and TCP, from the proof source, whose packets the switch always sends to
// kube-dns. Nil means that the fallback works over both. Check first that the host's rules are in place, because without the switch the
// agent itself would answer.
func (p *Prober) CheckFallback(ctx context.Context, clusterDNS netip.Addr, name string) error {
	ns, err := p.openNetNS()
	if err != nil {
		return err
	}
	q, err := addressQuestion(name, clusterDNS)
	if err != nil {
		return fmt.Errorf("check the fallback to %s: %w", clusterDNS, err)
	}
	source := steer.FallbackCheckSource(clusterDNS.Is4())
	// A new port each time, because an old one would follow its conntrack entry, perhaps to a kube-dns pod that is gone.
	if err := q.checkAnswer(queryRepeatedly(ctx, ns, source, clusterDNS, q)); err != nil {
		return fmt.Errorf("check the fallback to %s over udp: %w", clusterDNS, explainFallback(ctx, err))
	}
	if err := q.checkAnswer(openAndQuery(ctx, ns, source, clusterDNS, q.wire)); err != nil {
		return fmt.Errorf("check the fallback to %s over tcp: %w", clusterDNS, explainFallback(ctx, err))
	}
	return nil
}

func (p *Prober) openNetNS() (*netns, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	return p.netns, nil
}

// datagramsTo returns the UDP socket kept for target, opened at its first use.
func (p *Prober) datagramsTo(target netip.Addr) (*datagrams, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if s := p.sockets[target]; s != nil {
		return s, nil
	}
	s, err := openDatagrams(p.netns, steer.ProbeSource(target.Is4()), target)
	if err != nil {
		return nil, err
	}
	p.sockets[target] = s
	return s, nil
}

// familiesOf returns the address families in use, IPv4 first.
func familiesOf(redirects []steer.Redirect, locals []netip.Addr) []family {
	var out []family
	for _, f := range []family{ipv4(), ipv6()} {
		if slices.ContainsFunc(redirects, func(r steer.Redirect) bool { return r.Is4() == f.is4 }) ||
			slices.ContainsFunc(locals, func(a netip.Addr) bool { return a.Is4() == f.is4 }) {
			out = append(out, f)
		}
	}
	return out
}
