package cache_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDifferentialSetup: this package and CoreDNS accept and refuse the same blocks, except for a percentage below CoreDNS's least: a tenth
// of the TTL costs the upstream more than a tenth.
func TestDifferentialSetup(t *testing.T) {
	const oursAlone = "prefetch 10 1m 9%"
	taken := []string{
		"cache", "cache 10", "cache example.org", "cache 10 example.org example.net", "cache example.org 10", "cache 10 {\n}",
		"success 1000", "success 1000 60", "success 1000 60 0", "denial 1000", "denial 1000 60 10", "prefetch 0", "prefetch 10",
		"prefetch 10 1m", "prefetch 10 1m 10%", "serve_stale", "serve_stale 20m", "serve_stale 20m immediate",
		"serve_stale 20m IMMEDIATE", "serve_stale 20m verify", "serve_stale 20m verify 100ms", "serve_stale 20m verify 100ms 30s",
		"serve_stale 20m verify 100ms 30s 30s", "serve_stale 20m immediate 30s", "serve_stale 20m immediate 30s 30s",
		"serve_stale 20m\n serve_stale_policy prefer_positive", "servfail 1s", "servfail 0", "servfail 0s", "servfail 5m",
		"disable success", "disable denial example.org example.net", "keepttl",
		"success 1000\n denial 1000\n prefetch 2 30s 50%\n serve_stale 1h verify\n servfail 2s\n disable denial a.example\n keepttl",
	}
	refused := []string{
		oursAlone,
		"cache 0", "cache -5", "cache\ncache", "success", "success x", "success 1000 0", "success 1000 x", "success 1000 60 -1",
		"success 1000 60 x", "denial", "denial 1000 0", "denial 1000 60 -1", "prefetch", "prefetch -1", "prefetch 10 1x",
		"prefetch 10 1m 10", "prefetch 10 1m 0%", "prefetch 10 1m 91%", "prefetch 10 1m 50% more", "serve_stale 20m verify -1s",
		"serve_stale 20m verify 100ms 30s 30s 1s", "serve_stale 20m immediate 1500ms", "serve_stale 20m immediate -1s",
		"serve_stale 20m immediate 30s 6m", "serve_stale 20m sometimes", "serve_stale aa", "serve_stale -20m", "servfail 301s",
		"servfail -1s", "servfail", "servfail 1s 2s", "disable", "disable all", "unknown",
	}
	for i, text := range append(taken, refused...) {
		block := text
		if !strings.HasPrefix(block, "cache") {
			block = "cache {\n " + block + "\n}"
		}
		_, theirs := serve(stockProcess{}.setup(), block, new(scripted))
		if (theirs == nil) != (i < len(taken)) {
			t.Errorf("%q: CoreDNS: %v", text, theirs)
		}
		p := ours().open(t, nil, answers.Boot{})
		_, ours := serve(p.setup(), block, new(scripted))
		_, err := p.snapshot(answers.Boot{})
		testutil.Check(t, err)
		if same := (ours == nil) == (theirs == nil); same != (text != oursAlone) {
			t.Errorf("%q: ours %v, CoreDNS %v", text, ours, theirs)
		}
	}
}
