package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"

	"github.com/neardns/neardns/agent/internal/wire"
)

// step is a directive behind the cache, with all its words.
type step []string

// behind lists the directives of this server block that stand behind the cache in the chain: answers come to be there, and
// nowhere else. caddy shows a plugin only its own words, so the rest is read from the instance that is being made, which is
// the last of caddy's list. Without one (a test's controller) there is nothing to read.
func behind(c *caddy.Controller) ([]step, error) {
	all := caddy.Instances()
	if len(all) == 0 {
		return nil, nil
	}
	file := all[len(all)-1].Caddyfile()
	if file == nil {
		return nil, nil
	}
	blocks, err := caddyfile.Parse(file.Path(), bytes.NewReader(file.Body()), nil)
	if err != nil {
		return nil, fmt.Errorf("read the server block: %w", err)
	}
	if c.ServerBlockIndex >= len(blocks) || len(blocks[c.ServerBlockIndex].Keys) != len(c.ServerBlockKeys) {
		return nil, nil // another server's text: this one is only being checked
	}
	tokens := blocks[c.ServerBlockIndex].Tokens
	var chain []step
	at := slices.Index(dnsserver.Directives, "cache")
	for _, name := range dnsserver.Directives[at+1:] {
		switch name {
		case "admit", "cancel": // they say whether there is an answer, not which
			continue
		}
		if words := tokens[name]; len(words) > 0 {
			s := make(step, 0, len(words))
			for _, w := range words {
				s = append(s, w.Text)
			}
			chain = append(chain, s)
		}
	}
	return chain, nil
}

// scope names the way in which a block's answers come to be: who answers, for which zones, and what of it is kept. Blocks
// that agree in this share what they know, also over a reload, a restart and with a successor; others never do. What does
// not change an answer (capacities, prefetch, stale answers) is not part of it.
func (p *policy) scope(keys []string, chain []step) uint64 {
	h := sha256.New()
	// %q, so that no two lists look alike.
	fmt.Fprintf(h, "%q %q %d %d %d %d %q %q", keys, chain, p.maxTTL[wire.Success], p.maxTTL[wire.Denial],
		p.minTTL[wire.Success], p.minTTL[wire.Denial], p.except[wire.Success], p.except[wire.Denial])
	return binary.BigEndian.Uint64(h.Sum(nil))
}
