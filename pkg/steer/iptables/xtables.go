package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file reads the tables of iptables-legacy from the kernel without starting iptables. It changes no table. Because the
// kernel creates a table when it is read, this code reads only those that the kernel lists as in use; any other table has no
// rules. If the kernel does not permit the read, or its reply has an unknown form, the result is an error.

// legacyRule has the parts of an iptables-legacy rule that this package needs.
type legacyRule struct {
	chain  string // for a base chain in capitals, for example PREROUTING
	target string // an extension (DNAT, REJECT), a chain, or ACCEPT, DROP, RETURN; "" for none
	entry  []byte // the rule in the kernel's form, without counters and jump offsets, which may change although the rule does not
}

// legacyTable has the chains and rules of one table, in the kernel's order.
type legacyTable struct {
	chains []string // base chains first
	rules  []legacyRule
}

// policy returns the policy of a base chain, for example DROP; "" if there is no such chain. In the kernel the policy is the
// target of the chain's last rule.
func (t legacyTable) policy(chain string) string {
	for _, r := range slices.Backward(t.rules) {
		if r.chain == chain {
			return r.target
		}
	}
	return ""
}

// legacyInUse reports whether the kernel lists a table of iptables-legacy as in use in the calling thread's netns.
func legacyInUse(is4 bool, table string) (bool, error) {
	file := "/proc/thread-self/net/ip6_tables_names"
	if is4 {
		file = "/proc/thread-self/net/ip_tables_names"
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // the kernel has no iptables-legacy
	} else if err != nil {
		return false, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return slices.Contains(strings.Fields(string(data)), table), nil
}

// Options of getsockopt, and the sizes of struct ipt_getinfo and of the head of struct ipt_get_entries
// (linux/netfilter_ipv4/ip_tables.h). IPv6 has the same numbers.
const (
	optInfo, optEntries = 64, 65
	nameSize            = 32
	infoSize            = nameSize + 4 + 2*5*4 + 2*4
	headSize            = nameSize + 8
)

// readLegacy reads a table of iptables-legacy in the calling thread's netns. With onlyInfo it reads only struct ipt_getinfo,
// which is cheap, while a table may be many megabytes. If the table is in use, it needs CAP_NET_ADMIN. If the table is not in use,
// the result is empty.
func readLegacy(is4 bool, table string, onlyInfo bool) (info []byte, out legacyTable, err error) {
	used, err := legacyInUse(is4, table)
	if err != nil || !used {
		return nil, out, err
	}
	// If the table's size changes between the requests for its size and for its content, the kernel returns EAGAIN.
	for range 10 {
		var entries []byte
		if info, entries, err = fetchLegacy(is4, table, onlyInfo); err == nil && !onlyInfo {
			out, err = parseEntries(is4, info, entries)
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if err != nil {
		return nil, legacyTable{}, fmt.Errorf("read table %s of iptables-legacy: %w", table, err)
	}
	return info, out, nil
}

// fetchLegacy returns a table in the kernel's form: its struct ipt_getinfo and, without onlyInfo, its rule entries.
func fetchLegacy(is4 bool, table string, onlyInfo bool) (info, entries []byte, err error) {
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
	if err := getsockopt(fd, level, optInfo, info); err != nil || onlyInfo {
		return info, nil, err
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

// getsockopt reads an option into buf, whose size must be exactly that of the kernel's reply.
func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entryLayout has the size of struct ipt_entry or ip6t_entry, and offsets of fields in it, on a 64-bit machine.
type entryLayout struct{ targetOffset, nextOffset, size int }

func layoutOf(is4 bool) entryLayout {
	if is4 {
		return entryLayout{targetOffset: 88, nextOffset: 90, size: 112}
	}
	return entryLayout{targetOffset: 140, nextOffset: 142, size: 168}
}

const (
	targetHead = 32 // struct xt_entry_target
	targetName = 29
	errorName  = 30
)

var errShape = errors.New("the kernel's reply has an unknown form")

// parseEntries parses a table's rule entries. info is a struct ipt_getinfo, which has the hooks with a base chain and where each
// base chain begins.
func parseEntries(is4 bool, info, entries []byte) (legacyTable, error) {
	l := layoutOf(is4)
	begins, err := chainBegins(l, info, entries)
	if err != nil {
		return legacyTable{}, err
	}
	var out legacyTable
	chain := ""
	err = eachEntry(l, entries, func(at int, e, target []byte) error {
		if name, ok := begins[at]; ok {
			chain = name
			out.chains = append(out.chains, name)
		}
		to := nameIn(target[2 : 2+targetName])
		if to == "ERROR" {
			return nil
		}
		clear(e[l.nextOffset+2 : l.size]) // the field comefrom, which only the kernel uses, and the counters
		if to == "" {                     // the standard target, which is a verdict or a jump
			if len(target) < targetHead+4 {
				return errShape
			}
			to = standardVerdict(int32(binary.NativeEndian.Uint32(target[targetHead:])), begins) //nolint:gosec // signed in the kernel
			// A jump contains an offset into the table, which changes with other programs' rules.
			clear(target[targetHead : targetHead+4])
		}
		out.rules = append(out.rules, legacyRule{chain: chain, target: to, entry: e})
		return nil
	})
	return out, err
}

// chainBegins returns the name of each chain by the offset of its first rule.
func chainBegins(l entryLayout, info, entries []byte) (map[int]string, error) {
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
	// A chain that is no base chain begins with an entry whose target is ERROR and contains the chain's name. The table ends
	// with such an entry, too.
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

// eachEntry calls f with every rule entry, the entry's offset and its target.
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

// standardVerdict names the verdict in a standard target. Negative numbers are verdicts; others are the offset of the chain to
// jump to.
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

// digestLegacy writes the rules of some chains of a table, in the calling thread's netns, to these chains' hashes, so that equal
// rules give the same digest.
func digestLegacy(to map[string]io.Writer, is4 bool, table string) error {
	_, t, err := readLegacy(is4, table, false)
	for _, r := range t.rules {
		if w, ok := to[r.chain]; ok {
			_, _ = fmt.Fprintf(w, "%s %s %s %x\n", table, r.chain, r.target, r.entry) // a hash never fails
		}
	}
	return err
}
