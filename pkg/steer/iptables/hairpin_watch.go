package iptables

import (
	"context"
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Watch returns a channel that ticks when routing rules, the hairpin's routes or the reverse path filter may have changed. It
// is closed when ctx ends or the netlink socket fails. It does not watch links, because package link in the agent watches all of
// them.
func (t *Hairpin) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, t.nsFD, unix.NETLINK_ROUTE, changesHairpin, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF)
}

// changesHairpin reports whether a netlink message concerns the hairpin's routes, a rule with one of its priorities, or IPv4
// settings of links. On a node that speaks BGP, a hundred thousand other routes may change.
func changesHairpin(msgs []netlink.Message) bool {
	for _, m := range msgs {
		switch uint16(m.Header.Type) {
		case unix.RTM_NEWRULE, unix.RTM_DELRULE:
			r, err := parseRule(m.Data)
			if err != nil || r.priority >= filterRule && r.priority <= loopRule {
				return true
			}
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			if len(m.Data) < unix.SizeofRtMsg {
				continue
			}
			attrs, err := netlink.UnmarshalAttributes(m.Data[unix.SizeofRtMsg:])
			if err != nil {
				return true
			}
			for _, a := range attrs {
				if a.Type == unix.RTA_TABLE && len(a.Data) == 4 {
					if n := binary.NativeEndian.Uint32(a.Data); n == hairpinTable || n == answerTable {
						return true
					}
				}
				if a.Type == unix.RTA_DST && isSource(a.Data) {
					return true
				}
			}
		case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
			// the kernel also sends this message when a link is added or removed, which happens a few times per second at most
			return true
		}
	}
	return false
}

func isSource(dst []byte) bool {
	return string(dst) == string(steer.HairpinSource(true).AsSlice()) || string(dst) == string(steer.HairpinSource(false).AsSlice())
}
