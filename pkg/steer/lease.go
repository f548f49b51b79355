package steer

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Lease sends the datagrams that renew and withdraw leases, and the control packets of Hold and Release. Rules in the host's
// output hook change sets (with iptables: xt_recent's lists) by them and then drop them. So a renewal needs no nftables
// transaction, which would raise the ruleset's generation, so that other programs' dumps and restores start over, and may wait
// many seconds for the kernel's commit mutex.
//
// Each datagram contains a secret, which the agent draws when it starts (DrawSecret) and writes into the host table
// (Host.Secret). Without it any root container on the host's network could renew leases: since Linux 5.17 sending marked
// packets needs only CAP_NET_RAW, which containers have by default. Reading the host table needs CAP_NET_ADMIN. The iptables
// rules check only the mark.
//
// A Lease must be opened in the host's netns by root, and is safe for concurrent use.
type Lease struct {
	secret Secret
	mu     sync.Mutex
	fd4    int
	fd6    int // -1 if the kernel has no IPv6
	raw4   rawSocket
	raw6   rawSocket
	closed bool
}

// Secret shows the host's rules that a control packet is from the agent. Zero means that there is no secret.
type Secret uint64

// DrawSecret returns a random secret, different at each start of an agent.
func DrawSecret() Secret {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails (crypto/rand, Go 1.24)
	return max(Secret(binary.BigEndian.Uint64(b[:])), 1)
}

// Bytes returns the secret in the form that packets and rules contain.
func (s Secret) Bytes() []byte { return binary.BigEndian.AppendUint64(nil, uint64(s)) }

// String hides the secret from %v, %s and text logs. JSON logs do not call it, so log no Secret.
func (Secret) String() string { return "the agent's secret" }

// ErrNoSwitch means that no rule dropped a control packet, so it had no effect: the host's rules are missing or damaged, or have
// another agent's secret.
var ErrNoSwitch = errors.New("no rule took the lease datagram: the host table is missing, damaged or another agent's")

// OpenLease opens the sockets in the calling thread's netns. Each datagram will contain the secret. To set the mark it needs
// CAP_NET_ADMIN or, since Linux 5.17, CAP_NET_RAW. Without CAP_NET_RAW, Hold and Release fail; renewing works.
func OpenLease(secret Secret) (*Lease, error) {
	fd4, err := leaseSocket(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	fd6, err := leaseSocket(unix.AF_INET6)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd6, err = -1, nil
	}
	if err != nil {
		_ = unix.Close(fd4)
		return nil, err
	}
	return &Lease{secret: secret, fd4: fd4, fd6: fd6, raw4: openRaw(unix.AF_INET), raw6: openRaw(unix.AF_INET6)}, nil
}

// Secret is the secret that the host table must contain for this Lease to have an effect.
func (l *Lease) Secret() Secret { return l.secret }

func leaseSocket(domain int) (int, error) {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open lease socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, Mark); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mark lease socket: %w", err)
	}
	return fd, nil
}

// Renew grants or renews the lease of a local or steering address for the protocol. It lasts for the lifetime that the host's rules
// have (Host.Lifetime). Call it only right after a probe was answered. ErrNoSwitch means that no rule of the host took the
// datagram.
func (l *Lease) Renew(addr netip.Addr, p Protocol) error {
	renew, _ := LeasePorts(p)
	return l.send(addr, renew)
}

// Withdraw ends the lease for the protocol at once. With nftables, open TCP connections to the agent still reach it for ten
// seconds (the drain).
func (l *Lease) Withdraw(addr netip.Addr, p Protocol) error {
	_, withdraw := LeasePorts(p)
	return l.send(addr, withdraw)
}

func (l *Lease) send(addr netip.Addr, port int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("lease is closed")
	}
	var err error
	if addr.Is4() {
		err = unix.Sendto(l.fd4, l.secret.Bytes(), 0, &unix.SockaddrInet4{Port: port, Addr: addr.As4()})
	} else {
		err = unix.Sendto(l.fd6, l.secret.Bytes(), 0, &unix.SockaddrInet6{Port: port, Addr: addr.As16()})
	}
	return swallowed(addr.String(), err)
}

// swallowed returns nil if the host's rule dropped a control packet, which the kernel reports as EPERM, and ErrNoSwitch if no
// rule did.
func swallowed(what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return nil // the rule that applies a control packet then drops it
	case err == nil:
		return ErrNoSwitch
	default:
		return fmt.Errorf("send lease datagram for %s: %w", what, err)
	}
}

// Close closes the sockets. Leases in force then expire by themselves.
func (l *Lease) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	err := unix.Close(l.fd4)
	if l.fd6 >= 0 {
		err = errors.Join(err, unix.Close(l.fd6))
	}
	for _, r := range []rawSocket{l.raw4, l.raw6} {
		if r.err == nil {
			err = errors.Join(err, unix.Close(r.fd))
		}
	}
	return err
}
