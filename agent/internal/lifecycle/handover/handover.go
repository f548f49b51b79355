// Package handover passes a node from the active agent to its successor through a unix socket in the state folder: the open
// sockets, the content of the cache, and the node's lock.
//
// The successor requests the node (Take), and the active agent hands it over or refuses (Give). Both then serve the same sockets; the
// active agent stops reading, checks that the successor answers, and only then hands over the lock. The package implements the protocol
// alone: Holder and Successor check answers and change sockets, leases and caches.
//
// Failure policy: on any failure on either side, the active agent continues as before, and the successor's copies are closed. Each step has
// a time limit and each message a size limit. Only the active agent's receipt of "taken" cannot be undone. Until then the active agent
// keeps the prober's lock, without which no agent can renew a lease.
//
// The protocol, one packet a message (SOCK_SEQPACKET), JSON behind a byte for its kind:
//
//	successor                     active agent
//	hello {version, claim}  ──▶
//	                        ◀──   offer {claim, sockets} with a descriptor for each socket, or refusal {reason}
//	                        ◀──   cache … cache, cache-end
//	serving {addresses}     ──▶   (stops reading, checks the successor)
//	                        ◀──   yours, with the lock's descriptor, or refusal {reason}
//	taken                   ──▶   (releases the prober's lock, ends its connections, exits)
package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"
)

// Version is the protocol's version, which must be the same on both sides. If a successor has another one and may have the node, the active
// agent ends in order: no query is lost then either, and kube-dns answers for a moment.
const Version = 1

// Limits of what either side accepts from the other.
const (
	maxMessage = 64 << 10  // bytes; the kernel's default bounds a packet to 208 KiB (net.core.wmem_default)
	maxSockets = 64        // the kernel's own limit is 253 descriptors a packet (SCM_MAX_FD)
	maxCache   = 256 << 20 // bytes in all
)

// Time limits. The successor's are longer than the active agent's for the same step, so that the active agent ends a step first.
const (
	helloWait   = 2 * time.Second
	offerWait   = 5 * time.Second
	cacheWait   = 10 * time.Second // in all
	serveWait   = 20 * time.Second // to read the cache and to start a server, on a busy node
	yieldWait   = 10 * time.Second
	takenWait   = 2 * time.Second
	goodbyeWait = 30 * time.Second
)

// Socket is one listening socket. The owner of the Socket closes File.
type Socket struct {
	Protocol string // udp, tcp
	Address  netip.AddrPort
	File     *os.File
}

// ActiveAgent is the running agent in a handover. Its methods are called by one goroutine at a time.
type ActiveAgent interface {
	// Claim describes the agent.
	Claim() Claim
	// Sockets returns copies of its sockets' descriptors.
	Sockets() ([]Socket, error)
	// Snapshot writes the content of the cache. It stops when w fails.
	Snapshot(w io.Writer) error
	// AcceptSuccessor makes probes count the successor's answers as the active agent's own, until the returned function is called. It fails if
	// the holder is ending, so that no successor may begin any more.
	AcceptSuccessor(successor Claim) (end func(), err error)
	// Yield stops reading and returns once probes show that the successor answers at addresses. If they do not, it returns an error, and the
	// holder reads again. After a nil error, decide is always called: with true, the successor has the node.
	Yield(ctx context.Context, successor Claim, addresses []netip.Addr) (decide func(taken bool), err error)
	// StepDown ends the active agent as SIGTERM does, for a successor that may have the node and speaks another version.
	StepDown(successor Claim)
	// Lock is the descriptor of the node's lock. The caller must not close it.
	Lock() *os.File
	// Done records how a handover ended.
	Done(successor Claim, took time.Duration, err error)
}

// Successor is an agent that starts while another is active.
type Successor interface {
	// Restore reads the content of the active agent's cache. Entries that cannot be read are skipped.
	Restore(r io.Reader)
	// Serve begins to answer on sockets, which it owns from then on, and returns their addresses.
	Serve(ctx context.Context, active Claim, sockets []Socket) ([]netip.Addr, error)
	// Abandon undoes Serve if the handover fails. It is called before the connection to the active agent is closed.
	Abandon()
}

// RefusedError is the active agent's refusal.
type RefusedError struct {
	By     Claim // zero if it is not known
	Reason string
	Later  bool // a later request may succeed
}

func (e *RefusedError) Error() string {
	if e.By.PID == 0 {
		return "refused: " + e.Reason
	}
	return fmt.Sprintf("%s refused: %s", e.By, e.Reason)
}

// ErrNoActiveAgent means that no active agent listens.
var ErrNoActiveAgent = errors.New("no running agent offers a handover")
