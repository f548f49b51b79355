package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// checkEvery is the interval of Watch's regular ticks, for changes of which the kernel sends no event.
	checkEvery = 10 * time.Second
	// sizesEvery is how often Watch reads the sizes of iptables-legacy's tables, because the kernel sends no events for them.
	sizesEvery = 300 * time.Millisecond
)

// Watch returns a channel that ticks when the rules may have changed, and every checkEvery. It is closed when ctx ends. With
// iptables-nft it ticks at the kernel's events, with iptables-legacy when the size of a table changes. If Repair postpones its
// check after such a tick, Watch ticks again every recheckAfter until the check is made.
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
			case <-again.C:
				if !b.postponed.Load() {
					continue
				}
			case <-regular.C:
			}
			again.Reset(recheckAfter)
			ticks.Send()
		}
	}()
	return ticks, nil
}

// changes returns a channel that ticks when the rules may have changed, without Watch's regular ticks.
func (b *Iptables) changes(ctx context.Context) (<-chan struct{}, error) {
	if b.variant == NFT {
		return hostnet.Watch(ctx, b.nsFD, unix.NETLINK_NETFILTER, changesRules, unix.NFNLGRP_NFTABLES)
	}
	before, err := b.tableSizes()
	if err != nil {
		return nil, err
	}
	ticks := tick.New()
	go func() { // ends with ctx
		defer close(ticks)
		for tick.Pause(ctx, sizesEvery) {
			if now, err := b.tableSizes(); err == nil && now != before {
				before = now
				ticks.Send()
			}
		}
	}()
	return ticks, nil
}

// tableSizes returns a text that changes with the sizes of iptables-legacy's tables; "" for iptables-nft.
func (b *Iptables) tableSizes() (string, error) {
	if b.variant != Legacy {
		return "", nil
	}
	var out strings.Builder
	err := hostnet.InNetNS(b.nsFD, func() error {
		for _, is4 := range []bool{true, false} {
			for _, table := range tableOrder() {
				info, _, err := readLegacy(is4, table, true)
				if err != nil {
					return err
				}
				fmt.Fprintf(&out, "%x\n", info)
			}
		}
		return nil
	})
	return out.String(), err
}

// changesRules reports whether a netlink message can concern neardns's chains, or the base chains with jumps to them. Most
// messages are about kube-proxy's chains.
func changesRules(msgs []netlink.Message) bool {
	return slices.ContainsFunc(msgs, func(m netlink.Message) bool {
		table, chain, ok := nfnetlink.IptablesChange(m)
		own, known := ownChains()[table]
		return ok && known && (chain == "" || slices.Contains(own, chain) ||
			slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain))
	})
}
