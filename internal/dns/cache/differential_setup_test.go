package cache_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// TestDifferentialSetup compares which blocks this package and CoreDNS accept. Where they differ, the table has the reason.
func TestDifferentialSetup(t *testing.T) {
	for _, tc := range []struct {
		block string
		ok    bool   // for CoreDNS
		ours  string // why ours answers otherwise
	}{
		{"cache", true, ""},
		{"cache 10", true, ""},
		{"cache 0", false, ""},
		{"cache -5", false, ""},
		{"cache example.org", true, ""},
		{"cache 10 example.org example.net", true, ""},
		{"cache example.org 10", true, ""},
		{"cache 10 {\n}", true, ""},
		{"cache\ncache", false, ""},
		{"cache {\n success\n}", false, ""},
		{"cache {\n success 1000\n}", true, ""},
		{"cache {\n success x\n}", false, ""},
		{"cache {\n success 1000 0\n}", false, ""},
		{"cache {\n success 1000 60\n}", true, ""},
		{"cache {\n success 1000 x\n}", false, ""},
		{"cache {\n success 1000 60 0\n}", true, ""},
		{"cache {\n success 1000 60 -1\n}", false, ""},
		{"cache {\n success 1000 60 x\n}", false, ""},
		{"cache {\n denial\n}", false, ""},
		{"cache {\n denial 1000\n}", true, ""},
		{"cache {\n denial 1000 0\n}", false, ""},
		{"cache {\n denial 1000 60 10\n}", true, ""},
		{"cache {\n denial 1000 60 -1\n}", false, ""},
		{"cache {\n prefetch\n}", false, ""},
		{"cache {\n prefetch 0\n}", true, ""},
		{"cache {\n prefetch -1\n}", false, ""},
		{"cache {\n prefetch 10\n}", true, ""},
		{"cache {\n prefetch 10 1m\n}", true, ""},
		{"cache {\n prefetch 10 1x\n}", false, ""},
		{"cache {\n prefetch 10 1m 10%\n}", true, ""},
		{"cache {\n prefetch 10 1m 10\n}", false, ""},
		{"cache {\n prefetch 10 1m 9%\n}", false, "a tenth of the TTL costs the upstream more than a tenth"},
		{"cache {\n prefetch 10 1m 0%\n}", false, ""},
		{"cache {\n prefetch 10 1m 91%\n}", false, ""},
		{"cache {\n prefetch 10 1m 50% more\n}", false, ""},
		{"cache {\n serve_stale\n}", true, ""},
		{"cache {\n serve_stale 20m\n}", true, ""},
		{"cache {\n serve_stale 20m immediate\n}", true, ""},
		{"cache {\n serve_stale 20m IMMEDIATE\n}", true, ""},
		{"cache {\n serve_stale 20m verify\n}", true, ""},
		{"cache {\n serve_stale 20m verify 100ms\n}", true, ""},
		{"cache {\n serve_stale 20m verify -1s\n}", false, ""},
		{"cache {\n serve_stale 20m verify 100ms 30s\n}", true, ""},
		{"cache {\n serve_stale 20m verify 100ms 30s 30s\n}", true, ""},
		{"cache {\n serve_stale 20m verify 100ms 30s 30s 1s\n}", false, ""},
		{"cache {\n serve_stale 20m immediate 30s\n}", true, ""},
		{"cache {\n serve_stale 20m immediate 30s 30s\n}", true, ""},
		{"cache {\n serve_stale 20m immediate 1500ms\n}", false, ""},
		{"cache {\n serve_stale 20m immediate -1s\n}", false, ""},
		{"cache {\n serve_stale 20m immediate 30s 6m\n}", false, ""},
		{"cache {\n serve_stale 20m sometimes\n}", false, ""},
		{"cache {\n serve_stale aa\n}", false, ""},
		{"cache {\n serve_stale -20m\n}", false, ""},
		{"cache {\n serve_stale 20m\n serve_stale_policy prefer_positive\n}", true, ""}, // without effect
		{"cache {\n servfail 1s\n}", true, ""},
		{"cache {\n servfail 0\n}", true, ""},
		{"cache {\n servfail 0s\n}", true, ""},
		{"cache {\n servfail 5m\n}", true, ""},
		{"cache {\n servfail 301s\n}", false, ""},
		{"cache {\n servfail -1s\n}", false, ""},
		{"cache {\n servfail\n}", false, ""},
		{"cache {\n servfail 1s 2s\n}", false, ""},
		{"cache {\n disable\n}", false, ""},
		{"cache {\n disable success\n}", true, ""},
		{"cache {\n disable denial example.org example.net\n}", true, ""},
		{"cache {\n disable all\n}", false, ""},
		{"cache {\n keepttl\n}", true, ""}, // without effect
		{"cache {\n unknown\n}", false, ""},
		{"cache {\n success 1000\n denial 1000\n prefetch 2 30s 50%\n serve_stale 1h verify\n servfail 2s\n disable denial a.example\n keepttl\n}", true, ""},
	} {
		t.Run(strings.ReplaceAll(tc.block, "\n", " "), func(t *testing.T) {
			_, theirs := serve(stockProcess{}.setup(), tc.block, new(scripted))
			if (theirs == nil) != tc.ok {
				t.Errorf("CoreDNS: want it taken: %v, got %v", tc.ok, theirs)
			}
			p := contender().open(t, nil, answers.Boot{})
			_, ours := serve(p.setup(), tc.block, new(scripted))
			if _, err := p.snapshot(answers.Boot{}); err != nil {
				t.Error(err)
			}
			if same := (ours == nil) == (theirs == nil); same != (tc.ours == "") {
				t.Errorf("ours %v, CoreDNS %v, and the reason is %q", ours, theirs, tc.ours)
			}
		})
	}
}
