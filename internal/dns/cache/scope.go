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

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// step is a directive that comes after the cache in the plugin chain, with its arguments.
type step []string

// surroundings are the other directives of the cache's server block.
type surroundings struct {
	before  []string // names of directives, in the chain's order
	behind  []step   // the directives after the cache, which produce the answers that it stores
	servers step     // the upstreams' addresses; answers_of replaces them in the scope
}

// around reads the other directives of the server block. caddy shows a plugin only its own directive, so around parses the Corefile of
// the instance under construction, which is the last in caddy's list. If there is no instance, as in unit tests, it returns nothing.
func around(c *caddy.Controller) (s surroundings, err error) {
	all := caddy.Instances()
	if len(all) == 0 {
		return s, nil
	}
	file := all[len(all)-1].Caddyfile()
	if file == nil {
		return s, nil
	}
	blocks, err := caddyfile.Parse(file.Path(), bytes.NewReader(file.Body()), nil)
	if err != nil {
		return s, fmt.Errorf("read the server block: %w", err)
	}
	if c.ServerBlockIndex >= len(blocks) || len(blocks[c.ServerBlockIndex].Keys) != len(c.ServerBlockKeys) {
		// The last instance has another Corefile: this one is only validated, and must share no entries.
		return surroundings{before: []string{"?"}, behind: []step{{"?"}}}, nil
	}
	behind := false
	for _, name := range dnsserver.Directives {
		words := blocks[c.ServerBlockIndex].Tokens[name]
		switch {
		case name == "cache":
			behind = true
		case len(words) == 0:
		case !behind:
			s.before = append(s.before, name)
		case name == "limit", name == "cancel": // they may end a query, but do not change an upstream's answer
		default:
			next, servers := read(words)
			s.behind, s.servers = append(s.behind, next), append(s.servers, servers...)
		}
	}
	return s, nil
}

// read returns the words of a directive. Of the directive of package forward, which has the upstreams on its first line, it returns only
// these. The other lines decide which of the upstreams answers, and a change of them must not cost the stored answers.
func read(words []caddyfile.Token) (s, servers step) {
	ask := words[0].Text == "ask"
	for _, w := range words {
		switch {
		case !ask:
			s = append(s, w.Text)
		case w.Line == words[0].Line && w.Text != "{":
			servers = append(servers, w.Text)
		}
	}
	return s, servers
}

// isRaw reports whether no plugin before the cache needs replies as messages, so that they can be written as bytes. The plugin metrics
// reads the response code from the bytes.
func (s surroundings) isRaw() bool {
	return !slices.ContainsFunc(s.before, func(name string) bool {
		switch name {
		case "bufsize", "bind", "debug", "pprof", "probe", "metrics", "errors", "acl", "local":
			return false
		}
		return true
	})
}

// scope returns a hash of the settings that a block's stored answers depend on: zones, upstreams (or answers_of), the directives after the
// cache, the limits of TTLs, and the zones of disable. Blocks with equal scopes share entries, also across a reload, a restart and a
// handover; others never do.
func (p *policy) scope(keys []string, around surroundings) uint64 {
	h := sha256.New()
	asked := around.servers
	if p.answersOf != "" {
		asked = nil
	}
	// %q quotes each word, so that different lists never look alike.
	fmt.Fprintf(h, "%q %q %q %q %d %d %d %d %q %q", keys, around.behind, asked, p.answersOf,
		p.maxTTL[answers.Success], p.maxTTL[answers.Denial], p.minTTL[answers.Success], p.minTTL[answers.Denial],
		p.except[answers.Success], p.except[answers.Denial])
	return binary.BigEndian.Uint64(h.Sum(nil))
}
