// Package handover passes a node from the active agent to its successor through a unix socket in the state folder: the open
// sockets and the node's lock. The cache goes by its snapshot file.
//
// The successor requests the node (Take), and the active agent hands it over or refuses (Give). Both then answer on the same sockets. The
// active agent stops reading, checks that the successor answers, and only then hands over the lock. The package implements only the
// protocol; implementations of ActiveAgent and Successor check answers and change sockets, leases and caches.
//
// Failure policy: on any failure on either side, an active agent that still runs goes on as before, and the successor closes its copies of
// the sockets. If the active agent has ended, the successor may keep them. Each step has a time limit and each message a size limit. The
// handover is final once "taken" is sent, which fails after the active agent has given up. Until it has received that, the active agent
// keeps the prober's lock, without which no agent can renew a lease.
//
// The protocol has one message per packet (SOCK_SEQPACKET): a byte for its kind, then JSON if it has content.
//
//	successor                     active agent
//	hello {version, claim}  ──▶
//	                        ◀──   offer {claim, sockets} with a descriptor for each socket, or refusal {reason}
//	                        ◀──   cache-end (before it, agents of earlier builds send their cache in pieces)
//	serving {addresses}     ──▶   (stops reading, checks the successor)
//	                        ◀──   yours, with the lock's descriptor, or refusal {reason}
//	taken                   ──▶   (releases the prober's lock, ends its connections, exits)
package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/neardns/neardns/internal/dns/listener"
)

// Version is the version of the protocol, which must be the same on both sides. If it differs and the successor may take over, the active
// agent stops as at SIGTERM, without a handover, and kube-dns answers until the successor serves.
const Version = 1

// Limits on the messages that either side accepts from the other.
const (
	maxMessage = 64 << 10 // bytes; by default the kernel limits a packet to 208 KiB (net.core.wmem_default)
	maxSockets = 64       // descriptors; the kernel's limit is 253 per packet (SCM_MAX_FD)
)

// waits are the time limits of the steps: for one message, or until the other side's next one arrives. They are fields, because a unit test
// has no clock.
type waits struct{ hello, offer, cache, serve, yield, taken, goodbye time.Duration }

var limits = waits{
	hello:   2 * time.Second,
	offer:   15 * time.Second, // for the active agent to save its cache on a slow disk
	cache:   12 * time.Second, // for all cache messages together
	serve:   20 * time.Second, // for the successor to read the cache and start a server, on a busy node
	yield:   10 * time.Second,
	taken:   2 * time.Second,
	goodbye: 30 * time.Second,
}

// Socket is an open DNS socket. Its descriptor is sent along with the message.
type Socket = listener.Socket

// ActiveAgent is implemented by the agent that hands over. Several goroutines may call Claim, StepDown and Done at the same time, one for
// each connected successor. The other methods are called by one goroutine at a time.
type ActiveAgent interface {
	// Claim describes the agent.
	Claim() Claim
	// Sockets returns the agent's DNS sockets, with duplicated file descriptors.
	Sockets() ([]Socket, error)
	// AcceptSuccessor saves the cache for the successor and begins a handover: until end is called, the prober accepts the successor's answers
	// as the active agent's own. It fails if the active agent is ending, so that no handover begins then.
	AcceptSuccessor(successor Claim) (end func(), err error)
	// If pods are steered, Yield stops reading queries, and returns once probes show that the successor answers at addresses. If they do
	// not, it returns an error, and the active agent reads again. After a nil error, decide is always called: decide(true) means that the
	// successor has taken over.
	Yield(ctx context.Context, successor Claim, addresses []netip.Addr) (decide func(taken bool), err error)
	// StepDown stops the active agent as SIGTERM does. It is called if a successor may take over but has another protocol version.
	StepDown(successor Claim)
	// Lock returns the file of the node's lock. The caller must not close it.
	Lock() *os.File
	// Done records the result of a handover, or a refusal because the successor may not take over (took is 0). Other refusals are not
	// recorded.
	Done(successor Claim, took time.Duration, err error)
}

// Successor is implemented by an agent that takes over from the active one.
type Successor interface {
	// Serve begins to answer on sockets, which it owns from then on, and returns the addresses that it serves.
	Serve(ctx context.Context, active Claim, sockets []Socket) ([]netip.Addr, error)
	// Abandon undoes Serve if the handover fails, unless the active agent has ended and the successor keeps serving. It is called before
	// the connection to the active agent is closed.
	Abandon()
}

// RefusedError means that the active agent refused to hand over.
type RefusedError struct {
	By     Claim // the active agent; zero if unknown
	Reason string
	Later  bool // the same request may succeed later
}

func (e *RefusedError) Error() string {
	if e.By.PID == 0 {
		return "refused: " + e.Reason
	}
	return fmt.Sprintf("%s refused: %s", e.By, e.Reason)
}

// ErrNoActiveAgent means that no agent listens at the handover socket.
var ErrNoActiveAgent = errors.New("no running agent offers a handover")
