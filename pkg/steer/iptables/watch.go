package iptables

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// checkEvery is how often Watch ticks for changes that no event reports.
	checkEvery = 10 * time.Second
	// sizesEvery is how often the sizes of iptables-legacy's tables are read, for whose changes the kernel has no events.
	sizesEvery = 300 * time.Millisecond
)

// Watch ticks when the rules may have changed, and every few seconds, until ctx ends, which closes the channel. For
// iptables-nft it ticks at once, by the kernel's events; for iptables-legacy when the size of a table changes. It ticks again
// for a check that Repair postponed.
func (b *Iptables) Watch(ctx context.Context) (<-chan struct{}, error) {
	events, err := b.changes(ctx)
	if err != nil {
		return nil, err
	}
	ticks := tick.New()
	go func() { // ends with ctx
		defer close(ticks)
		regular, again := time.NewTicker(checkEvery), time.NewTimer(checkEvery)
		defer regular.Stop()
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-events:
				if !ok {
					events = nil
					continue
				}
				again.Reset(recheckAfter)
			case <-again.C:
				if !b.postponed.Load() {
					continue
				}
				again.Reset(recheckAfter)
			case <-regular.C:
			}
			ticks.Send()
		}
	}()
	return ticks, nil
}

// changes ticks for changes alone, without Watch's regular ticks.
func (b *Iptables) changes(ctx context.Context) (<-chan struct{}, error) {
	if b.variant == NFT {
		return hostnet.Watch(ctx, b.nsFD, unix.NETLINK_NETFILTER, changesRules, unix.NFNLGRP_NFTABLES)
	}
	before, err := b.tableSizes()
	if err != nil {
		return nil, err
	}
	return b.resized(ctx, before), nil
}

// resized ticks when the size of one of iptables-legacy's tables changes.
func (b *Iptables) resized(ctx context.Context, before string) <-chan struct{} {
	ticks := tick.New()
	go func() { // ends with ctx
		defer close(ticks)
		t := time.NewTicker(sizesEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			now, err := b.tableSizes()
			if err != nil || now == before {
				continue
			}
			before = now
			ticks.Send()
		}
	}()
	return ticks
}

// tableSizes returns the sizes of iptables-legacy's tables; "" for the other variant.
func (b *Iptables) tableSizes() (string, error) {
	if b.variant != Legacy {
		return "", nil
	}
	var out strings.Builder
	err := hostnet.InNetNS(b.nsFD, func() error {
		for _, is4 := range []bool{true, false} {
			for _, table := range tableOrder() {
				sizes, err := legacySizes(is4, table)
				if err != nil {
					return err
				}
				out.WriteString(sizes + "\n")
			}
		}
		return nil
	})
	return out.String(), err
}

// changesRules reports whether a message can concern neardns's chains, or the jumps into them. Most are kube-proxy's and do
// not.
func changesRules(msgs []netlink.Message) bool {
	const header = 4 // nfgenmsg
	for _, m := range msgs {
		if len(m.Data) < header || m.Data[0] != unix.NFPROTO_IPV4 && m.Data[0] != unix.NFPROTO_IPV6 {
			continue
		}
		var chainAttr uint16
		switch uint16(m.Header.Type) & 0xff { // the rest is the subsystem
		case unix.NFT_MSG_DELTABLE:
		case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
			chainAttr = unix.NFTA_CHAIN_NAME
		case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			chainAttr = unix.NFTA_RULE_CHAIN
		default:
			continue
		}
		attrs, err := netlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return true
		}
		table, chain := "", ""
		for _, a := range attrs {
			switch a.Type &^ nested {
			case unix.NFTA_TABLE_NAME: // 1 in all of them
				table = strings.TrimRight(string(a.Data), "\x00")
			case chainAttr:
				chain = strings.TrimRight(string(a.Data), "\x00")
			}
		}
		own, ok := ownChains()[table]
		if ok && (chainAttr == 0 || slices.Contains(own, chain) || slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain)) {
			return true
		}
	}
	return false
}
