// Package prober sends the agent's probes, which renew the leases, and the queries of the fallback check. It sends them from a network
// set up like a pod's: its own netns and veth with a pod table. A query takes the same path as pods' queries (pod table, veth, the host's
// switch, then INPUT to the agent, or the translation to kube-dns), so an answer means that pods get theirs.
//
// The package never renews a lease itself. Its netns has no name, so the kernel removes it and the veth when the process ends, even if it
// is killed. If the agent has no redirects (as in node-cache mode) and lacks the capability to create a netns, the prober queries from
// addresses in the host's netns, as the node's own processes do (D-031). An answer then does not show that INPUT accepts pods' packets, and
// a killed prober leaves its veth pair there, which its successor or RemoveLeftovers removes.
//
// Failure policy: a probe reports a Result and never retries; the caller decides what it means. Repair creates whatever is missing.
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

// Config describes the prober. It works with the IP families of Redirects and Locals.
type Config struct {
	Redirects []steer.Redirect
	Locals    []netip.Addr
	Rules     rules.Kind // the back end of the prober's pod table
	HostNetNS int        // descriptor of the host's netns, which the caller keeps open until Close; 0: the calling thread's netns
	Log       *slog.Logger
}

// ErrHeld means that another live process has the prober's lock in this netns: an agent that is being replaced, or one that should not
// run. The error that wraps it names the process, if the kernel shows which one it is.
var ErrHeld = errors.New("another agent's prober is running here")

// errClosed is the error of calls after Close.
var errClosed = errors.New("prober is closed")

// Prober sends queries as a pod would. All methods are safe for concurrent use.
type Prober struct {
	log      *slog.Logger
	rules    rules.Kind
	host     host
	lock     *os.File // holds the prober's lock of the host's netns; nil: not held
	inside   inside   // unused if hostOnly
	hostOnly bool     // the prober has no netns of its own and queries from the host's
	sockets  sockets

	// repair serialises Repair, Reconfigure and Close, and guards the field below. It is held while the kernel is changed.
	repair   sync.Mutex
	repaired []string // what ensure has created or repaired since the last call of Repair

	// mu guards the fields below. It is held only briefly, so that a slow repair does not delay a probe.
	mu        sync.Mutex
	redirects []steer.Redirect
	locals    []netip.Addr
	probing   map[netip.Addr]*datagrams // UDP sockets from the probe source, by target
}

// New takes the prober's lock and creates its network. It returns an error that wraps ErrHeld if another process has the lock.
//
// Creating the netns needs CAP_SYS_ADMIN. Redirects need the netns for a pod table; without redirects the prober also works in the host's
// netns.
func New(cfg Config) (*Prober, error) {
	p, err := openProber(cfg, false)
	if len(cfg.Redirects) == 0 && errors.Is(err, unix.EPERM) {
		return openProber(cfg, true)
	}
	return p, err
}

func openProber(cfg Config, bare bool) (*Prober, error) {
	p := &Prober{log: cfg.Log, rules: cfg.Rules, hostOnly: bare, redirects: slices.Clone(cfg.Redirects), locals: slices.Clone(cfg.Locals),
		probing: map[netip.Addr]*datagrams{}, sockets: sockets{spare: map[socketKind][]int{}}}
	if err := p.prepare(cfg.HostNetNS); errors.Is(err, errUnsettled) {
		p.log.Warn("the prober starts unfinished; until a repair finds it whole, probes fail and kube-dns answers", "err", err)
	} else if err != nil {
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
	p.sockets.do = p.host.Do
	if !p.hostOnly {
		if p.inside, err = openInside(p.rules); err != nil {
			return err
		}
		p.sockets.do = p.inside.nl.Do
	}
	return p.ensure()
}

// Repair repairs the prober's link, addresses, routes and pod table. It is idempotent, and writes nothing if nothing differs. It returns a
// description if it made the link or repaired the pod table; other repairs, such as of the link's addresses and routes, are not described.
func (p *Prober) Repair() (repaired string, err error) {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.repaired = nil
	if err := p.ensure(); err != nil {
		return "", fmt.Errorf("repair the prober: %w", err)
	}
	return strings.Join(p.repaired, ", "), nil
}

// Reconfigure replaces the redirects and local addresses, then does what Repair does.
func (p *Prober) Reconfigure(redirects []steer.Redirect, locals []netip.Addr) error {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.mu.Lock()
	p.redirects, p.locals = slices.Clone(redirects), slices.Clone(locals)
	p.mu.Unlock()
	// Sockets of targets that stay are kept for their probes in flight: a failed probe counts, so three reloads could cost the lease.
	p.closeSockets(func(target netip.Addr) bool {
		return !slices.Contains(locals, target) && !slices.ContainsFunc(redirects, func(r steer.Redirect) bool { return r.ClusterDNS == target })
	})
	if err := p.ensure(); err != nil {
		return fmt.Errorf("reconfigure the prober: %w", err)
	}
	return nil
}

// closeSockets closes the UDP sockets of the selected targets. The next probe of such a target opens another.
func (p *Prober) closeSockets(selected func(target netip.Addr) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for target, s := range p.probing {
		if selected(target) {
			delete(p.probing, target)
			s.close()
		}
	}
}

// Close removes all that New created. A probe in flight fails. Close may be called twice.
func (p *Prober) Close() error {
	p.repair.Lock()
	defer p.repair.Unlock()
	p.sockets.close() // first, so that no probe opens a socket of a target again
	p.closeSockets(func(netip.Addr) bool { return true })
	var errs []error
	if p.lock != nil {
		// Only the owner of the lock may delete the link.
		errs = append(errs, p.host.RemoveVeth(steer.ProberInterface))
	}
	errs = append(errs, p.inside.close())
	if p.lock != nil {
		errs = append(errs, p.lock.Close()) // last, because a successor may take the lock at once and set up its own prober
	}
	p.host.Close()
	p.lock, p.inside, p.host = nil, inside{}, host{}
	return errors.Join(errs...)
}

// RemoveLeftovers removes the link that a killed prober without a netns of its own left in the host's netns. It returns an error that
// wraps ErrHeld if a prober is running.
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

// takeLock takes the prober's lock in a netns; closing the returned file releases it. The kernel releases the lock when the process ends,
// so if the lock is free, an existing prober link belongs to a dead process.
func takeLock(h host) (lock *os.File, err error) {
	err = h.Do(func() (err error) {
		if lock, err = instancelock.Take(steer.ProberInterface); errors.Is(err, instancelock.ErrHeld) {
			return fmt.Errorf("%w: stop it first: %w", ErrHeld, err)
		}
		return err
	})
	return lock, err
}

// ensure creates or repairs the veth, its addresses and routes, and the prober's pod table. The caller holds p.repair, or has not published
// p yet.
func (p *Prober) ensure() error {
	if p.lock == nil {
		return errClosed
	}
	p.mu.Lock()
	redirects, locals := p.redirects, p.locals
	p.mu.Unlock()
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
	drift, err := p.inside.table.Repair(steer.Pod{Redirects: redirects, Always: true})
	if err != nil {
		return fmt.Errorf("prober's pod table: %w", err)
	}
	if len(drift) > 0 {
		p.repaired = append(p.repaired, "its pod table")
	}
	return awaitSettled(func() error {
		return errors.Join(checkUp(p.inside.nl, ownInterface), checkUp(p.host.Handle, steer.ProberInterface), checkLocal(p.inside.nl, want))
	})
}

// ensureHostOnly does what ensure does, for a prober that queries from the host's netns.
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
		p.log.Debug("created the prober's network interface", "interface", steer.ProberInterface)
	}
}

// Probe queries target, a cluster DNS address or a local address, to learn which agent answers there (Result.Instance). It waits for the
// answer until ctx ends. Probes run concurrently, but only one of a target over UDP: without an answer, it closes the target's socket.
func (p *Prober) Probe(ctx context.Context, target netip.Addr, protocol steer.Protocol) Result {
	q := newQuestion()
	source := steer.ProbeSource(target.Is4())
	if protocol == steer.TCP {
		return q.judge(openAndQuery(ctx, &p.sockets, source, target, q.wire))
	}
	s, err := p.datagramsTo(source, target)
	if err != nil {
		return q.judge(nil, err)
	}
	packet, err := s.exchange(ctx, q)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A connected IPv6 socket keeps its route when another table gets a better one, and the kernel adds the route of a new local
		// address only after the address, from its work queue: such a socket would never reach the target. A flow may also be lost in
		// conntrack.
		p.closeSockets(func(of netip.Addr) bool { return of == target })
	}
	return q.judge(packet, err)
}

// CheckFallback queries clusterDNS, a cluster DNS address or a local address, for name's address over UDP and TCP, from the fallback
// check's source address, whose packets the switch always sends to kube-dns. It returns nil if both are answered with NOERROR or NXDOMAIN.
// Call it only while the host's rules are in place, because without them the agent itself could answer.
func (p *Prober) CheckFallback(ctx context.Context, clusterDNS netip.Addr, name string) error {
	q, err := addressQuestion(name, clusterDNS)
	if err != nil {
		return fmt.Errorf("check the fallback to %s: %w", clusterDNS, err)
	}
	source := steer.FallbackCheckSource(clusterDNS.Is4())
	// Use a new source port each time: packets from an earlier port would follow its conntrack entry, perhaps to a kube-dns pod that is
	// gone.
	if err := q.checkAnswer(queryRepeatedly(ctx, &p.sockets, source, clusterDNS, q)); err != nil {
		return fmt.Errorf("check the fallback to %s over udp: %w", clusterDNS, explainFallback(err))
	}
	if err := q.checkAnswer(openAndQuery(ctx, &p.sockets, source, clusterDNS, q.wire)); err != nil {
		return fmt.Errorf("check the fallback to %s over tcp: %w", clusterDNS, explainFallback(err))
	}
	return nil
}

// datagramsTo returns the UDP socket from source, the probe source, to target, and opens it at its first use.
func (p *Prober) datagramsTo(source, target netip.Addr) (*datagrams, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.probing[target]; s != nil {
		return s, nil
	}
	s, err := openDatagrams(&p.sockets, source, target)
	if err != nil {
		return nil, err
	}
	p.probing[target] = s
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
