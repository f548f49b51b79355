// Package handover passes a node from a running agent to its successor through a unix socket in the state folder: the open
// sockets, what the cache holds, and the lock that says who has the node.
//
// The successor asks, the holder gives (Give) or says why not; then both serve the same sockets, the holder stops reading
// and proves that the successor answers, and only then hands over the lock. It must never decide by itself who is proven
// and never touch sockets, leases or caches: those are behind Holder and Successor.
//
// Failure policy: whatever goes wrong, at any step and on either side, the holder goes on as if nobody had asked, and the
// successor's copies are closed. Each step has a time limit and each message a size limit. The one moment that cannot be
// undone is the holder's receipt of "taken"; until then the prober's place, without which nobody renews a lease, is the
// holder's.
//
// The protocol, one packet a message (SOCK_SEQPACKET), JSON behind a byte for its kind:
//
//	successor                     holder
//	hello {version, claim}  ──▶
//	                        ◀──   offer {claim, sockets} with a descriptor for each socket, or refusal {reason}
//	                        ◀──   cache … cache, cache-end
//	serving {addresses}     ──▶   (stops reading, proves)
//	                        ◀──   yours, with the lock's descriptor, or refusal {reason}
//	taken                   ──▶   (gives up the prober's place, ends its connections, exits)
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

// Version is the protocol's. Both sides must speak the same. For a successor that speaks another, and may have the node, the
// holder ends in good order: that costs no question either, only that kube-dns answers for a moment.
const Version = 1

// Limits of what either side takes from the other.
const (
	maxMessage = 64 << 10  // bytes; the kernel's default bounds a packet to 208 KiB (net.core.wmem_default)
	maxSockets = 64        // the kernel's own limit is 253 descriptors a packet (SCM_MAX_FD)
	maxCache   = 256 << 20 // bytes in all
)

// Time limits. The successor's are longer than what they wait for, so that the holder ends a step first.
const (
	helloWait   = 2 * time.Second
	offerWait   = 5 * time.Second
	cacheWait   = 10 * time.Second // in all
	serveWait   = 20 * time.Second // to read the cache and to start a server, on a busy node
	yieldWait   = 10 * time.Second
	takenWait   = 2 * time.Second
	goodbyeWait = 30 * time.Second
)

// Socket is one listening socket. Whoever has the Socket closes File.
type Socket struct {
	Protocol string // udp, tcp
	Address  netip.AddrPort
	File     *os.File
}

// Holder is a running agent, as its hand-over needs it. Its methods are called by one goroutine at a time.
type Holder interface {
	// Claim says who it is.
	Claim() Claim
	// Sockets returns copies of its sockets' descriptors.
	Sockets() ([]Socket, error)
	// Snapshot writes what the cache holds. It stops when w fails.
	Snapshot(w io.Writer) error
	// Beside counts the successor's answers as good, until the returned function is called. It fails when the holder is
	// ending and no successor may begin any more.
	Beside(successor Claim) (end func(), err error)
	// Yield stops reading and returns once the successor is proven to answer at addresses, or with an error when it is not,
	// and then the holder reads again. After nil, decide is called in any case: with true, the node is the successor's.
	Yield(ctx context.Context, successor Claim, addresses []netip.Addr) (decide func(taken bool), err error)
	// StepDown ends the holder as if it were told to stop, for a successor that may have the node and speaks another version.
	StepDown(successor Claim)
	// Lock is the descriptor that holds the node's lock. It stays the holder's.
	Lock() *os.File
	// Done is told how a hand-over ended.
	Done(successor Claim, took time.Duration, err error)
}

// Successor is an agent that starts beside another.
type Successor interface {
	// Restore reads what the holder's cache held. What cannot be read is no reason to fail.
	Restore(r io.Reader)
	// Serve begins to answer on sockets, which it owns from then on, and returns where.
	Serve(ctx context.Context, holder Claim, sockets []Socket) ([]netip.Addr, error)
	// Abandon undoes Serve, after whatever made the hand-over fail. It is called before the holder hears of it.
	Abandon()
}

// RefusedError is the holder's refusal.
type RefusedError struct {
	Holder Claim // zero if it did not say who it is
	Reason string
	Later  bool // asking again may help
}

func (e *RefusedError) Error() string {
	if e.Holder.PID == 0 {
		return "refused: " + e.Reason
	}
	return fmt.Sprintf("%s refused: %s", e.Holder, e.Reason)
}

// ErrNobody says that no holder listens.
var ErrNobody = errors.New("no running agent offers a hand-over")
