package iptables

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// fingerprint returns a digest of the kernel's rules in neardns's chains and in the base chains that jump to them, without
// counters. While it is the same as after a check that found no difference, no other check is needed. It starts no program,
// because starting one duplicates this process's sockets until exec. If the agent were killed at that moment, the kernel would
// still deliver queries to the duplicates, and they would be lost.
func (b *Iptables) fingerprint(scripts []script) (string, error) {
	sum := sha256.New()
	for _, s := range scripts {
		for _, table := range s.tables() {
			var chains []string
			for _, c := range s.in(table) {
				chains = append(chains, c.name)
				for _, j := range c.from {
					chains = append(chains, j.base)
				}
			}
			slices.Sort(chains)
			chains = slices.Compact(chains)
			fmt.Fprintf(sum, "%s %s\n", s.family(), table)
			var err error
			if b.variant == Legacy {
				err = hostnet.InNetNS(b.nsFD, func() error { return digestLegacy(sum, s.is4, table, chains) })
			} else {
				err = nfnetlink.DigestRules(sum, b.nsFD, nfFamily(s.is4), table, chains)
			}
			if err != nil {
				return "", err
			}
		}
	}
	return string(sum.Sum(nil)), nil
}

func nfFamily(is4 bool) byte {
	if is4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
