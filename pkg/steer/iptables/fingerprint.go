package iptables

import (
	"crypto/sha256"
	"io"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// fingerprint has digests of the kernel's rules, without counters: of neardns's chains, and of the base chains that jump to them.
type fingerprint struct{ own, bases string }

// fingerprint computes the fingerprint. While it is the same as after a check that found no difference, no other check is needed.
// It starts no program, because starting one duplicates this process's sockets until exec. If the agent were killed at that moment,
// the kernel would still deliver queries to the duplicates, and they would be lost.
func (b *Iptables) fingerprint(scripts []script) (fingerprint, error) {
	own, bases := sha256.New(), sha256.New()
	for _, s := range scripts {
		for _, table := range s.tables() {
			to := map[string]io.Writer{}
			for _, c := range s.in(table) {
				to[c.name] = own
				for _, j := range c.from {
					to[j.base] = bases
				}
			}
			var err error
			if b.variant == Legacy {
				err = hostnet.InNetNS(b.nsFD, func() error { return digestLegacy(to, s.is4, table) })
			} else {
				err = nfnetlink.DigestRules(to, b.nsFD, nfFamily(s.is4), table)
			}
			if err != nil {
				return fingerprint{}, err
			}
		}
	}
	return fingerprint{own: string(own.Sum(nil)), bases: string(bases.Sum(nil))}, nil
}

func nfFamily(is4 bool) byte {
	if is4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
