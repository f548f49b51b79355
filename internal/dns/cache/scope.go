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

// step is a directive after the cache, with all its words.
type step []string

// surroundings are the other directives of the server block.
type surroundings struct {
	before  []string // names of directives, in the chain's order
	behind  []step   // the directives after the cache, which alone make answers
	servers step     // the upstreams, unless answers_of gives them a name
}

// around reads the server block. caddy shows a plugin only its own words, so the rest is read from the instance that is being
// made, which is the last of caddy's list. Without one (a test's controller) there is nothing to read.
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
		// Another server's text: this one is only being checked, and must share nothing.
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
		case name == "limit", name == "cancel": // they decide whether there is an answer, not which
		default:
			next, servers := read(words)
			s.behind, s.servers = append(s.behind, next), append(s.servers, servers...)
		}
	}
	return s, nil
}

// read returns a directive's words. It returns the upstreams, which are on the first line, separately, and leaves out the last resort and
// its mark, because a stand-in for the servers gives the same answers.
func read(words []caddyfile.Token) (s, servers step) {
	left := -1
	for i, w := range words {
		first := i == 0 || words[i-1].Line != w.Line
		switch {
		case words[0].Text != "ask":
		case w.Text == "{", w.Text == "}": // a body of nothing but a last resort is none
			continue
		case w.Line == words[0].Line && i > 0:
			servers = append(servers, w.Text)
			continue
		case first && (w.Text == "last_resort" || w.Text == "mark"):
			left = w.Line
			continue
		case w.Line == left:
			continue
		}
		s = append(s, w.Text)
	}
	return s, servers
}

// isRaw reports whether no plugin before the cache reads or changes answers, so that bytes can be written. Of the agent's own plugins,
// metrics reads the code from bytes, and searchpath gets whole messages.
func (s surroundings) isRaw() bool {
	return !slices.ContainsFunc(s.before, func(name string) bool {
		switch name {
		case "bufsize", "bind", "debug", "pprof", "probe", "metrics", "searchpath", "errors", "acl", "local":
			return false
		}
		return true
	})
}

// scope identifies how a block's answers are made: which servers answer, for which zones, and what is stored. Blocks with equal scopes
// share entries, also over a reload, a restart and with a successor; others never do. Settings that change no answer (capacities, prefetch,
// stale answers) are not part of it.
func (p *policy) scope(keys []string, around surroundings) uint64 {
	h := sha256.New()
	asked := around.servers
	if p.answersOf != "" {
		asked = nil
	}
	// %q, so that no two lists look alike.
	fmt.Fprintf(h, "%q %q %q %q %d %d %d %d %q %q", keys, around.behind, asked, p.answersOf,
		p.maxTTL[answers.Success], p.maxTTL[answers.Denial], p.minTTL[answers.Success], p.minTTL[answers.Denial],
		p.except[answers.Success], p.except[answers.Denial])
	return binary.BigEndian.Uint64(h.Sum(nil))
}
