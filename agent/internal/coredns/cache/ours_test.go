package cache_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/agent/internal/coredns/cache"
	"github.com/neardns/neardns/agent/internal/wire"
)

// ours is the cache of this package.
func ours() subject {
	return subject{name: "neardns", open: func(t *testing.T, snapshot []byte, boot wire.Boot) process {
		t.Helper()
		p := &ourProcess{store: wire.NewStore(0)}
		if snapshot != nil {
			if _, err := p.store.Restore(bytes.NewReader(snapshot), boot); err != nil {
				t.Fatal(err)
			}
		}
		p.metrics = cache.NewMetrics(p.store, prometheus.NewRegistry())
		return p
	}}
}

type ourProcess struct {
	store   *wire.Store
	metrics *cache.Metrics
}

func (p *ourProcess) setup() caddy.SetupFunc { return cache.Setup(p.store, p.metrics) }

func (p *ourProcess) snapshot(boot wire.Boot) ([]byte, error) {
	var b bytes.Buffer
	err := p.store.Snapshot(&b, boot)
	return b.Bytes(), err
}

// TestScenarios plays every scenario against the cache of this package: all that they say holds.
func TestScenarios(t *testing.T) {
	for _, sc := range scenarios(t) {
		t.Run(strings.TrimSuffix(sc.file, ".txt"), func(t *testing.T) {
			found := play(t, sc, ours())
			for i, s := range sc.steps {
				if errs := found[i]; len(errs) > 0 {
					t.Error(told(sc, s, errs))
				}
			}
		})
	}
}
