package nfnetlink

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Rules returns the messages that describe a chain's rules.
func Rules(conn *netlink.Conn, family byte, table, chain string) ([]netlink.Message, error) {
	return Request(conn, family, "list rules of "+chain, unix.NFT_MSG_GETRULE, netlink.Dump,
		Named(unix.NFTA_RULE_TABLE, table), Named(unix.NFTA_RULE_CHAIN, chain))
}

// DigestRules writes the rules of some chains, as the kernel reports their expressions but without packet counts, to these chains'
// hashes, so that equal rules give the same digest.
func DigestRules(to map[string]io.Writer, nsFD int, family byte, table string) error {
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, nsFD)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read
	for _, chain := range slices.Sorted(maps.Keys(to)) {
		replies, err := Rules(conn, family, table, chain)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(to[chain], "%s %s %d\n", table, chain, len(replies)) // a hash never fails
		for _, m := range replies {
			if err := Each(m, func(dec *netlink.AttributeDecoder) {
				if dec.Type() != unix.NFTA_RULE_EXPRESSIONS {
					return
				}
				EachNested(dec, func(expression *netlink.AttributeDecoder) {
					if e := expression.Bytes(); !bytes.HasPrefix(e[min(unix.NLA_HDRLEN, len(e)):], []byte("counter\x00")) {
						_, _ = fmt.Fprintf(to[chain], "%x\n", e)
					}
				})
			}); err != nil {
				return fmt.Errorf("read rules of %s: %w", chain, err)
			}
		}
	}
	return nil
}
