package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// Counters reads the host's counters; the names are those of the nftables back end.
func (b *Iptables) Counters() (map[string]steer.Counter, error) {
	out := map[string]steer.Counter{}
	for _, is4 := range []bool{true, false} {
		names, err := b.ownIn(b.flavour, is4, "raw")
		if err != nil {
			return nil, err
		} else if len(names) == 0 {
			continue
		}
		text, err := b.list(is4, "-t", "raw", "-v", "-S")
		if err != nil {
			return nil, err
		}
		counters(text, out)
	}
	return out, nil
}

// Leases lists the leases that are kept, by whether they are renewed: xt_recent keeps an address after its time is over, in
// ticks of a clock that it does not tell. It takes up to within, which is at least twice the time between two renewals.
func (b *Iptables) Leases(within, lifetime time.Duration) ([]steer.LeaseState, error) {
	begun, err := b.recent()
	if err != nil || len(begun) == 0 {
		return nil, err
	}
	var out []steer.LeaseState
	const again = 20 * time.Millisecond
	for deadline := time.Now().Add(within); len(out) < len(begun) && time.Now().Before(deadline); <-time.After(again) {
		now, err := b.recent()
		if err != nil {
			return nil, err
		}
		for key, seen := range now {
			held := func(l steer.LeaseState) bool { return l.Address == key.addr && l.Protocol == key.proto }
			if before, ok := begun[key]; (!ok || before != seen) && !slices.ContainsFunc(out, held) {
				out = append(out, steer.LeaseState{Address: key.addr, Protocol: key.proto, Expires: lifetime})
			}
		}
	}
	return out, nil
}

type leaseKey struct {
	addr  netip.Addr
	proto steer.Protocol
}

// recent reads xt_recent's lists: for each address when it was last seen, in a text that changes when it is seen again.
func (b *Iptables) recent() (map[leaseKey]string, error) {
	out := map[leaseKey]string{}
	err := steer.InNetNS(b.nsFD, func() error {
		for _, is4 := range []bool{true, false} {
			for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
				text, err := os.ReadFile("/proc/thread-self/net/xt_recent/" + list(p, is4))
				if errors.Is(err, fs.ErrNotExist) {
					continue // no rule names the list
				} else if err != nil {
					return fmt.Errorf("read leases: %w", err)
				}
				for a, seen := range parseRecent(string(text)) {
					out[leaseKey{a, p}] = seen
				}
			}
		}
		return nil
	})
	return out, err
}

// parseRecent reads lines like "src=169.254.20.11 ttl: 64 last_seen: 4304567890 oldest_pkt: 3 4304567000, …".
func parseRecent(text string) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		word, ok := strings.CutPrefix(name, "src=")
		a, err := netip.ParseAddr(word)
		_, seen, found := strings.Cut(rest, "last_seen: ")
		if seen, _, _ = strings.Cut(seen, " "); ok && err == nil && found {
			out[a] = seen
		}
	}
	return out
}

// lookEvery is how often Watch asks for a look where the kernel tells of no change: iptables-legacy's never are told.
const lookEvery = 10 * time.Second

// Watch ticks every few seconds until ctx ends, which closes the channel.
func (b *Iptables) Watch(ctx context.Context) (<-chan struct{}, error) {
	ticks := make(chan struct{}, 1)
	go func() { // ends with ctx
		defer close(ticks)
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks, nil
}
