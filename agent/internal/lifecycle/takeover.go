package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/lifecycle/instancelock"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/tick"
)

// Times that the successor uses in a handover.
const (
	takeAgain   = 250 * time.Millisecond // pause between two tries to become the active agent
	takeMax     = 30 * time.Second       // after this time without success, the successor exits with an error that names the active agent
	relockMax   = 300 * time.Millisecond // a dying process may close its connections this long before the kernel releases its lock
	relockLook  = 10 * time.Millisecond  // pause between two tries to take a dying agent's lock
	proberAgain = 5 * time.Millisecond   // pause between two tries to take the prober's lock
	proberSoon  = time.Second            // after this time without the prober's lock, the successor logs a warning
	proberMax   = time.Minute            // limit of the wait for that lock: the predecessor may be stopped (SIGSTOP) while it has the lock
)

// lockNode takes the lock of a state folder, so that only one agent serves it. The kernel releases the lock when the process ends; a
// handover passes it to the successor with its file descriptor. who is written into the lock file, for messages of other processes. It
// returns a *LockedError if another process has the lock.
func lockNode(stateDir, who string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	path := filepath.Join(stateDir, nodestate.AgentLockName)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			data, _ := io.ReadAll(io.LimitReader(f, 512)) // used only to name the owner
			_ = f.Close()
			return nil, &LockedError{path: path, owner: strings.TrimSpace(string(data))}
		}
		if there, err := os.Stat(path); err != nil || !sameFile(f, there) {
			_ = f.Close() // a cleanup removed the file after it was opened, so this lock protects nothing
			continue
		}
		signLock(f, who)
		return f, nil
	}
}

func sameFile(f *os.File, there os.FileInfo) bool {
	mine, err := f.Stat()
	return err == nil && os.SameFile(mine, there)
}

// signLock writes who has the lock into the lock file, for messages of other processes. It ignores errors, so that the agent also serves
// when the disk is full.
func signLock(f *os.File, who string) {
	if _, err := f.WriteAt([]byte(who+"\n"), 0); err == nil {
		_ = f.Truncate(int64(len(who) + 1))
	}
}

// netLock is the name of the lock that an agent in node-cache mode takes. There is one lock per netns, and it ends with the process. It
// needs no shared folder, because node-cache's manifest mounts none.
const netLock = "neardns-nodecache"

// lockNetNS takes the lock of the netns, so that only one agent in node-cache mode serves it. It returns a *LockedError if another
// process has the lock.
func lockNetNS() (*os.File, error) {
	f, err := instancelock.Take(netLock)
	if errors.Is(err, instancelock.ErrHeld) {
		return nil, &LockedError{path: "@" + netLock, owner: "in node-cache's place"}
	} else if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	return f, nil
}

// takeLock takes the lock that a plan names. It returns a *LockedError if another process has it.
func takeLock(l plan.Lock, who string) (*os.File, error) {
	if l.Folder == "" {
		return lockNetNS()
	}
	return lockNode(l.Folder, who)
}

// ownership is what makes an agent the active one: the node's lock, and after a handover what the predecessor handed over.
type ownership struct {
	lock   *os.File
	from   *node.Handover // nil if there was no handover
	served []netip.Addr   // addresses at which this agent's server already answers
}

// takeNode makes this agent the active one: at once if no agent is active, or by a handover if this agent may take over. If it may not,
// it waits for the other agent's end in node-cache mode, and returns a LockedError (exit code 3) otherwise. It also returns one if the
// active agent refuses for good, or neither hands over nor ends.
func (a *agent) takeNode(ctx context.Context, o *opened) (*ownership, error) {
	s := &successor{agent: a, opened: o, begun: time.Now()}
	for {
		got, err := s.lock()
		a.waited = a.waited || err != nil
		var held *LockedError
		switch {
		case err == nil:
			return &ownership{lock: got}, nil
		case !errors.As(err, &held):
			return nil, err
		case a.mayTake:
			if own, err := s.request(ctx, held); own != nil || err != nil {
				return own, err
			}
		case !o.plan.Lock.Waits:
			return nil, fmt.Errorf("%w: stop it first, or start with --take-over", held)
		case s.lastLogged == "":
			s.lastLogged = "standing by"
			a.ensureFallback(o.plan)
			a.log.Info("another agent is active on this node; this one is standing by until it ends")
		}
		if !tick.Pause(ctx, takeAgain) {
			return nil, ctx.Err()
		}
	}
}

// request requests a handover from the active agent. If it returns neither an ownership nor an error, the caller tries again later.
func (s *successor) request(ctx context.Context, held *LockedError) (*ownership, error) {
	a, metrics := s.agent, s.opened.metrics
	release := reserveLow() // the sockets that the active agent sends then get high numbers
	taken, err := handover.Take(ctx, a.log, filepath.Join(s.opened.plan.Folders.State, nodestate.HandoverName), a.claim, s)
	release()
	var refused *handover.RefusedError
	switch {
	case err == nil:
		metrics.Handover("taken")
		signLock(taken.Lock, a.claim.String())
		from := &node.Handover{From: taken.From.String(), At: taken.At, Took: taken.Took.Round(time.Millisecond).String()}
		return &ownership{lock: taken.Lock, served: s.served, from: from}, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.orphaned != nil:
		a.log.Warn("active agent ended during the handover; this agent has taken the node over", "from", held.owner, "err", err)
		from := &node.Handover{From: held.owner, At: time.Now(), Took: "0s"}
		return &ownership{lock: s.orphaned, served: s.served, from: from}, nil
	case errors.As(err, &refused) && !refused.Later:
		return nil, fmt.Errorf("%w: %s", held, refused.Reason)
	case !errors.Is(err, handover.ErrNoActiveAgent):
		metrics.Handover("failed")
	}
	if text := err.Error(); text != s.lastLogged {
		a.log.Warn("takeover failed; retried for 30 s, then this agent ends", "active", held.owner, "err", err)
		s.lastLogged = text
	}
	if time.Since(s.begun) > takeMax {
		return nil, fmt.Errorf("%w, and did not hand over within %s: %w", held, takeMax, err)
	}
	return nil, nil //nolint:nilnil // the caller tries again
}

// ensureFallback adds missing rules to the switch, and makes the link if it is missing, before this agent stands by. The active agent
// maintains both, too. If that agent fails, kube-dns can then answer pods.
func (a *agent) ensureFallback(first plan.Plan) {
	err := func() error {
		rules, err := first.Host(nil, rules.Uplinks)
		if err != nil {
			return err
		}
		host, err := a.backend.OpenHost(-1)
		if err != nil {
			return err
		}
		defer host.Close() //nolint:errcheck // at this point all changes are written
		return host.Ensure(rules)
	}()
	if _, missing := net.InterfaceByName(first.Link.Name); missing != nil && !first.Link.Foreign {
		_, linkErr := link.Ensure(link.Config{Name: first.Link.Name, Addresses: first.Addresses()})
		err = errors.Join(err, linkErr)
	}
	if err != nil {
		a.log.Warn("cannot check or restore the host's rules and neardns's link while standing by; the active agent maintains them", "err", err)
	}
}

// proberFor opens the prober. After a handover it waits, for proberMax at most, until the predecessor has released the prober's lock, which
// the predecessor does right after it has handed over the node's lock.
func (s *ownership) proberFor(ctx context.Context, cfg prober.Config) (*prober.Prober, error) {
	logged := false
	for begun := time.Now(); ; {
		p, err := prober.New(cfg)
		waited := time.Since(begun)
		if s.from == nil || !errors.Is(err, prober.ErrHeld) || waited > proberMax {
			return p, err
		}
		if !logged && waited > proberSoon {
			cfg.Log.Warn("the predecessor still holds the prober's lock, so no lease can be granted yet", "from", s.from.From, "err", err)
			logged = true
		}
		if !tick.Pause(ctx, proberAgain) {
			return nil, ctx.Err()
		}
	}
}

// successor is this agent while it tries to become the active one. It implements handover.Successor.
type successor struct {
	agent      *agent
	opened     *opened
	begun      time.Time
	lastLogged string // last logged reason why the handover failed, or "standing by"
	served     []netip.Addr
	orphaned   *os.File // file of the node's lock, if the active agent died during the handover and this agent took it
}

func (s *successor) lock() (*os.File, error) {
	return takeLock(s.opened.plan.Lock, s.agent.claim.String())
}

// Serve loads the cache, which the active agent has saved, and begins to answer on that agent's sockets, for the addresses that this
// agent's configuration also has. The other configured addresses are served later, when this agent owns the link.
func (s *successor) Serve(ctx context.Context, _ handover.Claim, sockets []handover.Socket) ([]netip.Addr, error) {
	count := map[netip.Addr]int{}
	for _, i := range sockets {
		count[i.Address.Addr()]++
	}
	cfg := s.opened.plan.Server
	cfg.Addresses = slices.DeleteFunc(slices.Clone(cfg.Addresses), func(a netip.Addr) bool { return count[a] != 2 })
	if len(cfg.Addresses) == 0 {
		for _, i := range sockets {
			_ = i.File.Close() // the active agent has the original
		}
		return nil, nil
	}
	s.agent.answers.Load()
	if err := s.opened.server.StartOn(ctx, cfg, sockets); err != nil {
		return nil, err
	}
	s.served = cfg.Addresses
	return s.served, nil
}

// Abandon stops the server that Serve started. If the active agent has died meanwhile, this agent takes the lock instead and keeps
// serving.
func (s *successor) Abandon() {
	for begun := time.Now(); time.Since(begun) < relockMax; {
		if lock, err := s.lock(); err == nil {
			s.orphaned = lock
			return
		}
		<-time.After(relockLook)
	}
	s.opened.server.Pause() // first stop reading, so that the active agent answers the unread queries
	if err := s.opened.server.Stop(); err != nil {
		s.agent.log.Warn("DNS server did not stop cleanly after a failed handover", "err", err)
	}
	s.served = nil
}
