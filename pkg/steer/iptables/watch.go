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
	// lookEvery is how often Watch asks for a look at what no event tells of.
	lookEvery = 10 * time.Second
	// sizesEvery is how often the sizes of iptables-legacy's tables are asked for, of whose changes the kernel tells nobody.
	sizesEvery = 300 * time.Millisecond
)

// Watch ticks when the rules may have been changed, and every few seconds, until ctx ends, which closes the channel: at once for
// iptables-nft, of whose changes the kernel tells, and for iptables-legacy when a table has another size. A look that is not due
// yet is asked for again.
func (b *Iptables) Watch(ctx context.Context) (<-chan struct{}, error) {
	events, err := b.changes(ctx)
	if err != nil {
		return nil, err
	}
	ticks := tick.New()
	go func() { // ends with ctx
		defer close(ticks)
		regular, again := time.NewTicker(lookEvery), time.NewTimer(lookEvery)
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
				again.Reset(lookAgain)
			case <-again.C:
				if !b.owed.Load() {
					continue
				}
				again.Reset(lookAgain)
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
		return hostnet.Watch(ctx, b.nsFD, unix.NETLINK_NETFILTER, touchesUs, unix.NFNLGRP_NFTABLES)
	}
	before, err := b.tableSizes()
	if err != nil {
		return nil, err
	}
	return b.resized(ctx, before), nil
}

// resized ticks when one of iptables-legacy's tables has another size than before.
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

// tableSizes tells how big the tables of iptables-legacy are; "" for the other variant.
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

// touchesUs tells changes that can matter to our chains, and to the jumps into them, from the many of kube-proxy's.
func touchesUs(msgs []netlink.Message) bool {
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
