package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// Notes returns the clients whose queries the rules sent to the agent, and those whose queries then passed the host's filters. It reads
// them in this order, so that a query in flight does not look like one that the filters dropped.
func (n *Nftables) Notes() (steer.Notes, error) {
	return retried(n, "read evidence", func() (out steer.Notes, err error) {
		start := time.Now()
		if out.Delivered, err = n.clients("asked", askedMemory); err != nil {
			return out, err
		}
		// Read the set heard after the set asked, because the rules record a query in heard a moment later.
		out.Arrived, err = n.clients("heard", heardMemory)
		out.Slack = time.Since(start) + kernelTick()
		return out, err
	})
}

// Suspects returns the suspected clients, sorted.
func (n *Nftables) Suspects() ([]steer.Suspect, error) {
	return retried(n, "read suspects", func() (out []steer.Suspect, err error) {
		suspects, err := n.clients("suspect", suspectMemory)
		if err != nil || len(suspects) == 0 {
			return nil, err
		}
		held, err := n.clients("bypass", 0)
		for c := range suspects {
			out = append(out, steer.Suspect{Client: c, Held: -held[c]})
		}
		slices.SortFunc(out, func(a, b steer.Suspect) int { return a.Compare(b.Client) })
		return out, err
	})
}

// clients returns the clients in a set, of both IP families, with the time since each was last updated. memory is the set's
// timeout. With memory 0, each value is minus the time until the element expires.
func (n *Nftables) clients(set string, memory time.Duration) (map[steer.Client]time.Duration, error) {
	out := map[steer.Client]time.Duration{}
	for _, f := range families() {
		elements, err := n.elements(set + f.suffix)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			c, err := readClient(e.key, int(f.size))
			if err != nil {
				return nil, fmt.Errorf("set %s%s: %w", set, f.suffix, err)
			}
			out[c] = memory - e.expires
		}
	}
	return out, nil
}

// readClient parses a set's key: source address, protocol in a register of its own, destination address.
func readClient(key []byte, size int) (steer.Client, error) {
	const register = 4
	if len(key) != 2*size+register {
		return steer.Client{}, fmt.Errorf("a key of %d bytes", len(key))
	}
	source, _ := netip.AddrFromSlice(key[:size])
	address, _ := netip.AddrFromSlice(key[size+register:])
	return steer.Client{Source: source, Protocol: steer.Protocol(key[size]), Address: address}, nil
}

// Unheard returns, by protocol, how many queries were delivered and did not pass the host's filters since the table was made.
// It is a cheap check: if the numbers do not grow, no queries are lost. Queries on their way, and those to ceded addresses, make
// the numbers inexact.
func (n *Nftables) Unheard() (map[steer.Protocol]int64, error) {
	counts, err := n.Counters()
	return map[steer.Protocol]int64{
		steer.UDP: int64(counts[steer.CounterDeliveredUDP].Packets - counts[steer.CounterHeardUDP].Packets), //nolint:gosec // of one boot
		steer.TCP: int64(counts[steer.CounterDeliveredTCP].Packets - counts[steer.CounterHeardTCP].Packets), //nolint:gosec // of one boot
	}, err
}

// kernelTick returns the precision of the kernel's set timeouts: 1/CONFIG_HZ (the resolution of the coarse clocks,
// clock_getres(2)), and 1 ms for rounding, because 1/CONFIG_HZ may be no whole number of milliseconds (CONFIG_HZ=300).
func kernelTick() time.Duration {
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &res); err != nil {
		res = unix.NsecToTimespec((10 * time.Millisecond).Nanoseconds()) // CONFIG_HZ=100, the longest
	}
	return time.Duration(res.Nano()) + time.Millisecond
}
