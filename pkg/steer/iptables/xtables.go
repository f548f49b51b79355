package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file reads the tables of iptables-legacy from the kernel, as iptables does but without starting it. It changes no table.
// Because the kernel creates a table that is requested, it requests only those that the kernel lists as in use; a table that is
// not in use has no rules. If the kernel does not permit the read, or its reply has an unknown form, the result is an error.

// LegacyRule is the part of a rule that this package needs.
type LegacyRule struct {
	Chain  string       // a base chain's name in capitals: PREROUTING
	Dst    netip.Prefix // the whole family if the rule has no destination
	Not    bool         // every destination but Dst
	Target string       // an extension (DNAT, REJECT), a chain, ACCEPT, DROP, RETURN; "" for none
}

// LegacyTable is the rules and chains of one table, in the kernel's order.
type LegacyTable struct {
	Chains []string // base chains first
	Rules  []LegacyRule
}

// Policy is the verdict for a packet that no rule of a base chain decides on; "" if there is no such chain. In the kernel it is
// the chain's last rule.
func (t LegacyTable) Policy(chain string) string {
	for _, r := range slices.Backward(t.Rules) {
		if r.Chain == chain {
			return r.Target
		}
	}
	return ""
}

// legacyInUse reports whether a table was ever used in the calling thread's netns.
func legacyInUse(is4 bool, table string) (bool, error) {
	file := "/proc/thread-self/net/ip6_tables_names"
	if is4 {
		file = "/proc/thread-self/net/ip_tables_names"
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without iptables-legacy
	} else if err != nil {
		return false, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return slices.Contains(strings.Fields(string(data)), table), nil
}

// ReadLegacy reads a table of the calling thread's netns. It needs CAP_NET_ADMIN if the table is in use.
func ReadLegacy(is4 bool, table string) (LegacyTable, error) {
	used, err := legacyInUse(is4, table)
	if err != nil || !used {
		return LegacyTable{}, err
	}
	var out LegacyTable
	// If the table is replaced between the requests for its size and its content, the kernel returns EAGAIN.
	for range 10 {
		out, err = readLegacyOnce(is4, table)
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if err != nil {
		return LegacyTable{}, fmt.Errorf("read table %s of iptables-legacy: %w", table, err)
	}
	return out, nil
}

// The options of getsockopt, and the sizes of struct ipt_getinfo and of the head of struct ipt_get_entries
// (linux/netfilter_ipv4/ip_tables.h). Those of IPv6 have the same numbers.
const (
	optInfo, optEntries = 64, 65
	nameSize            = 32
	infoSize            = nameSize + 4 + 2*5*4 + 2*4
	headSize            = nameSize + 8
)

func readLegacyOnce(is4 bool, table string) (LegacyTable, error) {
	info, entries, err := fetchEntries(is4, table)
	if err != nil {
		return LegacyTable{}, err
	}
	return parseEntries(is4, info, entries)
}

// fetchEntries returns a table in the kernel's form: struct ipt_getinfo, and the entries.
func fetchEntries(is4 bool, table string) (info, entries []byte, err error) {
	family, level := unix.AF_INET6, unix.IPPROTO_IPV6
	if is4 {
		family, level = unix.AF_INET, unix.IPPROTO_IP
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // only read
	info = make([]byte, infoSize)
	copy(info, table)
	if err := getsockopt(fd, level, optInfo, info); err != nil {
		return nil, nil, err
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	entries = make([]byte, headSize+int(size))
	copy(entries, table)
	binary.NativeEndian.PutUint32(entries[nameSize:], size)
	if err := getsockopt(fd, level, optEntries, entries); err != nil {
		return nil, nil, err
	}
	return info, entries[headSize:], nil
}

// getsockopt fills buf, whose size must be exactly that of the kernel's reply.
func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entryLayout is the offsets in struct ipt_entry or ip6t_entry, on a 64-bit machine.
type entryLayout struct{ address, invflags, targetOffset, nextOffset, size int }

func layoutOf(is4 bool) entryLayout {
	if is4 {
		return entryLayout{address: 4, invflags: 83, targetOffset: 88, nextOffset: 90, size: 112}
	}
	return entryLayout{address: 16, invflags: 132, targetOffset: 140, nextOffset: 142, size: 168}
}

const (
	invertDst  = 0x10 // IPT_INV_DSTIP, IP6T_INV_DSTIP
	targetHead = 32   // struct xt_entry_target
	targetName = 29
	errorName  = 30
)

var errShape = errors.New("the kernel's reply has an unknown form")

// parseEntries reads the entries. info, a struct ipt_getinfo, has which of the five hooks have a chain, and where each begins.
func parseEntries(is4 bool, info, entries []byte) (LegacyTable, error) {
	l := layoutOf(is4)
	begins, err := chainsOf(l, info, entries)
	if err != nil {
		return LegacyTable{}, err
	}
	var out LegacyTable
	chain := ""
	err = eachEntry(l, entries, func(at int, e []byte, target []byte) error {
		if name, ok := begins[at]; ok {
			chain = name
			out.Chains = append(out.Chains, name)
		}
		to := nameIn(target[2 : 2+targetName])
		switch to {
		case "ERROR":
			return nil
		case "": // the standard target: a verdict or a jump
			if len(target) < targetHead+4 {
				return errShape
			}
			to = standardVerdict(int32(binary.NativeEndian.Uint32(target[targetHead:])), begins) //nolint:gosec // signed in the kernel
		}
		dst, err := destinationOf(l, e)
		if err != nil {
			return err
		}
		out.Rules = append(out.Rules, LegacyRule{Chain: chain, Dst: dst, Not: e[l.invflags]&invertDst != 0, Target: to})
		return nil
	})
	return out, err
}

// chainsOf finds each chain's first rule, by its offset.
func chainsOf(l entryLayout, info, entries []byte) (map[int]string, error) {
	if len(info) != infoSize {
		return nil, errShape
	}
	begins := map[int]string{}
	valid := binary.NativeEndian.Uint32(info[nameSize:])
	for hook, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if valid&(1<<hook) != 0 {
			begins[int(binary.NativeEndian.Uint32(info[nameSize+4+4*hook:]))] = name
		}
	}
	// A user's chain begins with an entry whose target is ERROR with the chain's name, and so does the end of the table.
	if err := eachEntry(l, entries, func(at int, e []byte, target []byte) error {
		if nameIn(target[2:2+targetName]) != "ERROR" {
			return nil
		}
		if len(target) < targetHead+errorName {
			return errShape
		}
		if name := nameIn(target[targetHead : targetHead+errorName]); at+len(e) < len(entries) {
			begins[at+len(e)] = name
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return begins, nil
}

// eachEntry calls f with every entry, its offset and its target.
func eachEntry(l entryLayout, entries []byte, f func(at int, entry, target []byte) error) error {
	for at := 0; at < len(entries); {
		e := entries[at:]
		if len(e) < l.size {
			return errShape
		}
		target, next := int(binary.NativeEndian.Uint16(e[l.targetOffset:])), int(binary.NativeEndian.Uint16(e[l.nextOffset:]))
		if target < l.size || next < target+targetHead || next > len(e) {
			return errShape
		}
		if err := f(at, e[:next], e[target:next]); err != nil {
			return err
		}
		at += next
	}
	return nil
}

// destinationOf reads the entry's destination: of its four addresses, the second is the value and the fourth the mask.
func destinationOf(l entryLayout, e []byte) (netip.Prefix, error) {
	n := l.address
	addr, ok := netip.AddrFromSlice(e[n : 2*n])
	if !ok {
		return netip.Prefix{}, errShape
	}
	bits := 0
	for _, b := range e[3*n : 4*n] {
		for ; b&0x80 != 0; b <<= 1 {
			bits++
		}
		// Non-contiguous masks are not needed here: use their first bits.
		if b != 0 {
			break
		}
	}
	return netip.PrefixFrom(addr, bits), nil
}

// standardVerdict names a standard target's number: XT_RETURN and the others are negative, a jump is an offset.
func standardVerdict(v int32, begins map[int]string) string {
	switch v {
	case -1:
		return "DROP"
	case -2:
		return "ACCEPT"
	case -5:
		return "RETURN"
	}
	return begins[int(v)] // "": continue with the next rule, like a rule without a target
}

func nameIn(field []byte) string {
	name, _, _ := bytes.Cut(field, []byte{0})
	return string(name)
}

// digestLegacy writes the kernel's entries of some chains of a table of the calling thread's netns, without counters, so that
// equal rules are written equally.
func digestLegacy(to io.Writer, is4 bool, table string, chains []string) error {
	used, err := legacyInUse(is4, table)
	if err != nil || !used {
		return err
	}
	for range 10 { // as in ReadLegacy
		var info, entries []byte
		if info, entries, err = fetchEntries(is4, table); !errors.Is(err, unix.EAGAIN) {
			if err == nil {
				err = digestEntries(to, is4, info, entries, chains)
			}
			break
		}
	}
	if err != nil {
		return fmt.Errorf("read table %s of iptables-legacy: %w", table, err)
	}
	return nil
}

func digestEntries(to io.Writer, is4 bool, info, entries []byte, chains []string) error {
	l := layoutOf(is4)
	begins, err := chainsOf(l, info, entries)
	if err != nil {
		return err
	}
	chain := ""
	return eachEntry(l, entries, func(at int, e, target []byte) error {
		if name, ok := begins[at]; ok {
			chain = name
		}
		name := nameIn(target[2 : 2+targetName])
		if name == "ERROR" || !slices.Contains(chains, chain) {
			return nil // an ERROR entry belongs to the next chain
		}
		e = slices.Clone(e)
		begin := len(e) - len(target)
		// Clear comefrom, which the kernel uses internally, and the counters.
		clear(e[l.nextOffset+2 : l.size])
		word := ""
		if name == "" && len(target) >= targetHead+4 { // a jump is an offset, which changes with other programs' rules
			word = standardVerdict(int32(binary.NativeEndian.Uint32(target[targetHead:])), begins) //nolint:gosec // signed in the kernel
			clear(e[begin+targetHead : begin+targetHead+4])
		}
		_, err := fmt.Fprintf(to, "%s %s %x\n", chain, word, e)
		return err
	})
}

// legacySizes returns the size of a table of the calling thread's netns and the offsets of its base chains, in a form that can
// only be compared. It costs nothing, whereas the table's content may be many megabytes. "" if the table is not in use.
func legacySizes(is4 bool, table string) (string, error) {
	used, err := legacyInUse(is4, table)
	if err != nil || !used {
		return "", err
	}
	family, level := unix.AF_INET6, unix.IPPROTO_IPV6
	if is4 {
		family, level = unix.AF_INET, unix.IPPROTO_IP
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) //nolint:errcheck // only read
	info := make([]byte, infoSize)
	copy(info, table)
	if err := getsockopt(fd, level, optInfo, info); err != nil {
		return "", fmt.Errorf("read the size of table %s of iptables-legacy: %w", table, err)
	}
	return string(info), nil
}
