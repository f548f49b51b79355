package nft

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

func (r rule) canonical() (string, error) {
	a := attributes{data: make([]byte, 0, 256)}
	parts := make([]string, 0, len(r.ops))
	for _, o := range r.ops {
		a.data = a.data[:0]
		if err := o.write(&a); err != nil {
			return "", err
		}
		text, err := nfnetlink.CanonicalExpr(a.data)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; "), nil
}

// errUnsettled is returned to retry, which then reads the rules again.
var errUnsettled = fmt.Errorf("rules changed at each read: %w", unix.EAGAIN)

// rules returns, by chain, the rules of the neardns table in canonical form (see package nfnetlink).
func (n *Nftables) rules() (map[string][]string, error) {
	replies, err := n.request("list rules", unix.NFT_MSG_GETRULE, netlink.Dump, nfnetlink.Named(unix.NFTA_RULE_TABLE, steer.TableName))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, m := range replies {
		table, chain, exprs, err := nfnetlink.ReadRule(m.Data)
		if err != nil {
			return nil, err
		}
		if table == steer.TableName {
			out[chain] = append(out[chain], strings.Join(exprs, "; "))
		}
	}
	return out, nil
}
