package prober

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// FramesInterface is the other end of ProberInterface if the prober has no netns of its own.
const FramesInterface = steer.FramesInterface

// frames is the prober's side of the veth if it may not make a netns (CAP_SYS_ADMIN): the end stays in the host's netns but is no part of
// its network. Queries are written to it as frames, and answers are read from it, so queries enter the host through the other end as a
// pod's do: the switch, INPUT and everything between see no difference. There is no pod table, so it works only if pods' packets are not
// rewritten.
type frames struct {
	host host

	mu     sync.Mutex // guards the fields below
	socket *os.File   // nil until the link is made
	ended  chan struct{}
	flows  map[uint16]chan packet // by our port
	kept   map[netip.Addr]*keptPort
	closed bool
}

// keptPort is the source port of UDP probes of one target, as a kept socket would have.
type keptPort struct {
	mu   sync.Mutex // one query at a time
	port uint16
}

// flowDepth is how many packets a flow buffers: far more than an answer has.
const flowDepth = 64

func newFrames(h host) *frames {
	return &frames{host: h, flows: map[uint16]chan packet{}, kept: map[netip.Addr]*keptPort{}}
}

// ensureLink makes the veth if it is missing, and a socket on the prober's end.
func (f *frames) ensureLink() (made bool, err error) {
	if there, err := f.host.vacate(f.leadsTo); there || err != nil {
		return false, err
	}
	if err := f.host.AddVeth(steer.ProberInterface, hostMAC(), FramesInterface, framesMAC(), 0); err != nil {
		return false, err
	}
	return true, f.reopen()
}

// leadsTo reports whether l is the other end of the link of the prober's socket.
func (f *frames) leadsTo(l netlink.Link) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.socket != nil && paired(l, f.host.Handle, FramesInterface, framesMAC())
}

// ensure repairs the properties of the prober's end.
func (f *frames) ensure(families []family) error {
	if _, err := ensureEnd(f.host.Handle, FramesInterface, framesMAC(), families); err != nil {
		return fmt.Errorf("interface %s: %w", FramesInterface, err)
	}
	return nil
}

// reopen opens a socket on the prober's present end.
func (f *frames) reopen() error {
	own, err := f.host.LinkByName(FramesInterface)
	if err != nil {
		return fmt.Errorf("look up interface %s: %w", FramesInterface, err)
	}
	var fd int
	if err := f.host.Do(func() (err error) {
		// Without a protocol it receives nothing until it is bound, and then packets of this link alone.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		return fmt.Errorf("open packet socket (needs CAP_NET_RAW): %w", err)
	}
	if err := bindFrames(fd, own.Attrs().Index); err != nil {
		unix.Close(fd)
		return err
	}
	socket, ended := os.NewFile(uintptr(fd), FramesInterface), make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errors.Join(errClosed, socket.Close())
	}
	if f.socket != nil {
		_ = f.socket.Close() // of a link that is gone
	}
	f.socket, f.ended = socket, ended
	go f.read(socket, ended) // until the socket is closed
	return nil
}

func bindFrames(fd, index int) error {
	const packetIgnoreOutgoing = 23 // PACKET_IGNORE_OUTGOING, Linux 4.20
	// Best effort: otherwise the prober also reads what it sends, and skips it by its hardware address.
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, packetIgnoreOutgoing, 1)
	all := uint16(unix.ETH_P_ALL)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: index}); err != nil {
		return fmt.Errorf("bind packet socket to %s: %w", FramesInterface, err)
	}
	return nil
}

// read passes each packet to the flow that waits for it.
func (f *frames) read(socket *os.File, ended chan struct{}) {
	defer close(ended)
	buffer := make([]byte, 1<<16+ethernetHeader)
	for {
		n, err := socket.Read(buffer)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			continue // the link went down, which the kernel reports once; a repair makes another socket
		}
		p, err := readFrame(buffer[:n])
		if err != nil || !p.toUs {
			continue
		}
		port := p.target.Port()
		if p.refused != nil {
			port = p.source.Port()
		}
		p.payload = slices.Clone(p.payload)
		f.mu.Lock()
		if in := f.flows[port]; in != nil {
			select {
			case in <- p:
			default: // drop it, as a full socket does
			}
		}
		f.mu.Unlock()
	}
}

// flow is one conversation.
type flow struct {
	frames         *frames
	protocol       steer.Protocol
	source, target netip.AddrPort
	in             chan packet
}

// open begins a conversation from port, or from any if it is 0.
func (f *frames) open(protocol steer.Protocol, source, target netip.Addr, from uint16) (*flow, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.socket == nil {
		return nil, errClosed
	}
	for from == 0 || f.flows[from] != nil {
		from = uint16(32768 + rand.IntN(28000)) //nolint:gosec // any that is free
	}
	in := make(chan packet, flowDepth)
	f.flows[from] = in
	return &flow{frames: f, protocol: protocol, source: netip.AddrPortFrom(source, from), target: netip.AddrPortFrom(target, port), in: in}, nil
}

func (c *flow) close() {
	c.frames.mu.Lock()
	defer c.frames.mu.Unlock()
	delete(c.frames.flows, c.source.Port())
}

func (c *flow) send(p packet) error {
	p.protocol, p.source, p.target = c.protocol, c.source, c.target
	c.frames.mu.Lock()
	socket := c.frames.socket
	c.frames.mu.Unlock()
	if socket == nil {
		return errClosed
	}
	frame := p.frame()
	_, err := socket.Write(frame)
	if errors.Is(err, unix.ENETDOWN) {
		_, err = socket.Write(frame) // the kernel has reported an earlier failure of the link, which it does once
	}
	if err != nil {
		return fmt.Errorf("send by %s: %w", FramesInterface, err)
	}
	return nil
}

// receive waits for a packet of this conversation.
func (c *flow) receive(ctx context.Context) (packet, error) {
	for {
		select {
		case p := <-c.in:
			switch {
			case p.protocol != c.protocol:
			case p.refused != nil && p.source == c.source && p.target == c.target:
				return packet{}, p.refused
			case p.refused == nil && p.source == c.target && p.target == c.source:
				return p, nil
			}
		case <-ctx.Done():
			return packet{}, ctx.Err()
		}
	}
}

// probeDatagram queries from the port kept for target.
func (f *frames) probeDatagram(ctx context.Context, source, target netip.Addr, q question) ([]byte, error) {
	f.mu.Lock()
	k := f.kept[target]
	if k == nil {
		k = new(keptPort)
		f.kept[target] = k
	}
	f.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := f.open(steer.UDP, source, target, k.port)
	if err != nil {
		return nil, err
	}
	defer c.close()
	k.port = c.source.Port()
	return c.datagram(ctx, q)
}

// proveDatagram queries from a new port, and again each second.
func (f *frames) proveDatagram(ctx context.Context, source, target netip.Addr, q question) ([]byte, error) {
	c, err := f.open(steer.UDP, source, target, 0)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for {
		attempt, cancel := context.WithTimeout(ctx, resendAfter)
		answer, err := c.datagram(attempt, q)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return answer, err
		}
	}
}

func (c *flow) datagram(ctx context.Context, q question) ([]byte, error) {
	if err := c.send(packet{payload: q.wire}); err != nil {
		return nil, err
	}
	for {
		p, err := c.receive(ctx)
		if err != nil {
			return nil, err
		}
		if q.matches(p.payload) {
			return p.payload, nil
		}
	}
}

func (f *frames) close() {
	f.mu.Lock()
	f.closed = true
	socket, ended := f.socket, f.ended
	f.socket = nil
	f.mu.Unlock()
	if socket != nil {
		_ = socket.Close()
		<-ended
	}
}

// forget drops the ports kept for targets.
func (f *frames) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.kept)
}
