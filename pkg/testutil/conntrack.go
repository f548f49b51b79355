package testutil

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Conntrack lists the namespace's connection tracking entries that have port 53 in either direction, one line each; the
// zone is named if it is not the default zone. A query whose packets are not tracked leaves no entry.
func Conntrack(ns *NetNS) []string { ns.t.Helper(); return ConntrackOf(ns, 53) }

// ConntrackOf is Conntrack for another port than 53.
func ConntrackOf(ns *NetNS, port uint16) []string {
	ns.t.Helper()
	var lines []string
	flows, err := ns.handle.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC) // of both families
	if err != nil {
		ns.t.Fatalf("list connection tracking in %s: %v", ns.name, err)
	}
	for _, f := range flows {
		if f.Forward.DstPort == port || f.Reverse.SrcPort == port {
			lines = append(lines, conntrackLine(f))
		}
	}
	return lines
}

func conntrackLine(f *netlink.ConntrackFlow) string {
	protocol := map[uint8]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp"}[f.Forward.Protocol]
	line := fmt.Sprintf("%s %s:%d > %s:%d, reply %s:%d > %s:%d", protocol,
		f.Forward.SrcIP, f.Forward.SrcPort, f.Forward.DstIP, f.Forward.DstPort,
		f.Reverse.SrcIP, f.Reverse.SrcPort, f.Reverse.DstIP, f.Reverse.DstPort)
	if f.Zone != 0 {
		line += fmt.Sprintf(" zone %d", f.Zone)
	}
	return line
}

// FlushConntrack removes all connection tracking entries of the namespace.
func FlushConntrack(ns *NetNS) {
	ns.t.Helper()
	if err := ns.handle.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		ns.t.Fatalf("flush connection tracking in %s: %v", ns.name, err)
	}
}

// WantNoConntrack fails the test if the namespace has a connection tracking entry with port 53.
func WantNoConntrack(t TB, ns *NetNS) {
	t.Helper()
	if lines := Conntrack(ns); len(lines) > 0 {
		t.Fatalf("%s tracks DNS:\n%s", ns.name, strings.Join(lines, "\n"))
	}
}
