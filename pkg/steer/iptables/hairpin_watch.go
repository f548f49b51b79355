package iptables

import (
	"context"
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Watch ticks when routing rules, the hairpin's routes or the reverse path filter may have changed, until ctx ends, which
// closes the channel. It does not watch links: the code that keeps the agent's own link does.
func (t *Hairpin) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, t.nsFD, unix.NETLINK_ROUTE, changesHairpin, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF)
}

// changesHairpin reports whether a message concerns the hairpin's routes, or rules with its numbers. On a node with BGP, a
// hundred thousand other routes may change.
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
			return true // also when a link is added or removed: a few per second at most
		}
	}
	return false
}

func isSource(dst []byte) bool {
	return string(dst) == string(steer.HairpinSource(true).AsSlice()) || string(dst) == string(steer.HairpinSource(false).AsSlice())
}
