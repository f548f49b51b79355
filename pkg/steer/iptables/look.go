package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// Entered reports whether an IP family's packets pass neardns's chains: whether PREROUTING in table raw jumps to them. It reads
// from the kernel and starts no program, so that an ADD can afford it.
func (b *Iptables) Entered(is4 bool) (bool, error) {
	const base = "PREROUTING"
	if b.variant == Legacy {
		var in bool
		err := hostnet.InNetNS(b.nsFD, func() error {
			_, t, err := readLegacy(is4, "raw", false)
			in = slices.ContainsFunc(t.rules, func(r legacyRule) bool { return r.chain == base && r.target == preroutingChain })
			return err
		})
		return in, err
	}
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, b.nsFD)
	if err != nil {
		return false, err
	}
	defer conn.Close() //nolint:errcheck // only read
	rules, err := nfnetlink.Rules(conn, nfFamily(is4), "raw", base)
	return slices.ContainsFunc(rules, func(m netlink.Message) bool { return bytes.Contains(m.Data, []byte(preroutingChain+"\x00")) }), err
}

// Counters returns the host's counters by the names that package steer defines.
func (b *Iptables) Counters() (map[string]steer.Counter, error) {
	out := map[string]steer.Counter{}
	for _, is4 := range []bool{true, false} {
		names, err := b.ownIn(b.variant, is4, "raw")
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

// Leases lists the leases that are renewed while it watches xt_recent's lists, for at most within, which must be at least twice
// the time between renewals. Each LeaseState has lifetime as Expires. One read does not show whether a lease is in force:
// xt_recent keeps expired addresses, and its times are in ticks of a clock that it does not show.
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

// recent reads xt_recent's lists of leases. The result has, for each address and protocol, a text that changes with each renewal.
func (b *Iptables) recent() (map[leaseKey]string, error) {
	out := map[leaseKey]string{}
	err := b.eachList(func(file string, p steer.Protocol) error {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read leases: %w", err)
		}
		for a, seen := range parseRecent(string(text)) {
			out[leaseKey{a, p}] = seen
		}
		return nil
	})
	return out, err
}

// eachList calls f with the path of each list of leases. f's error counts unless it means that the kernel has no such list.
func (b *Iptables) eachList(f func(file string, p steer.Protocol) error) error {
	return hostnet.InNetNS(b.nsFD, func() error {
		for _, is4 := range []bool{true, false} {
			for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
				err := f("/proc/thread-self/net/xt_recent/"+list(p, is4), p)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		return nil
	})
}

// listOwner is the ID of the user and group that restrictLists makes the owners of the lists' files. It is above the range of
// Kubernetes' runAsUser.
const listOwner = 0xefffffff

// restrictLists keeps root processes without capabilities from writing leases: xt_recent creates its files writable for root,
// and checks no capability. Rules can still change the lists. Without CAP_CHOWN, the files become read-only but stay root's: such
// a process can then make them writable again.
func (b *Iptables) restrictLists() error {
	return b.eachList(func(file string, _ steer.Protocol) error {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			return fmt.Errorf("check the owner of the lease list: %w", err)
		} else if st.Uid == listOwner && st.Mode&0o222 == 0 {
			return nil
		}
		// Change the mode before the owner, because only the owner may do so.
		err := unix.Chmod(file, 0o444)
		if err == nil {
			err = unix.Chown(file, listOwner, listOwner)
		}
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("restrict the lease list: %w", err)
		}
		return nil
	})
}

// parseRecent parses lines of xt_recent, for example "src=169.254.20.11 ttl: 64 last_seen: 4304567890 oldest_pkt: 3 4304567000,
// …". It returns the last_seen of each address.
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
