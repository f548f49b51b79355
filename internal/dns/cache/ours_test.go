package cache_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/coredns/caddy"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/dns/cache"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// ours is our cache: one store a process, which every load of the configuration finds again.
func ours() subject {
	return subject{name: "ours", open: func(t *testing.T, snapshot []byte, boot answers.Boot) process {
		t.Helper()
		p := &ourProcess{store: answers.NewStore(0)}
		if snapshot != nil {
			_, err := p.store.Restore(bytes.NewReader(snapshot), boot)
			testutil.Must(t, err)
		}
		p.metrics = newMetrics(p.store)
		return p
	}}
}

func newMetrics(store *answers.Store) *cache.Metrics {
	return cache.NewMetrics(store, prometheus.NewRegistry())
}

type ourProcess struct {
	store   *answers.Store
	metrics *cache.Metrics
	running *caddy.Instance // the latest load's
}

// setup starts what a load registers to be started, and shuts down what the load before registered, as caddy does.
func (p *ourProcess) setup() caddy.SetupFunc {
	set := cache.Setup(p.store, p.metrics, nil)
	return func(c *caddy.Controller) error {
		if err := set(c); err != nil {
			return err
		}
		before := p.running
		p.running = instance(c)
		for _, f := range p.running.OnStartup {
			if err := f(); err != nil {
				return err
			}
		}
		return stopped(before)
	}
}

func stopped(inst *caddy.Instance) error {
	var errs []error
	if inst != nil {
		for _, f := range inst.OnShutdown {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// peek looks at the store while it is in use.
func (p *ourProcess) peek() error {
	p.store.Sweep()
	return p.store.Snapshot(new(bytes.Buffer), answers.Boot{})
}

func (p *ourProcess) snapshot(boot answers.Boot) ([]byte, error) {
	var b bytes.Buffer
	err := p.store.Snapshot(&b, boot)
	return b.Bytes(), errors.Join(err, stopped(p.running))
}

// instance returns the instance of a test's controller, which has the start-up callbacks and which caddy does not export.
func instance(c *caddy.Controller) *caddy.Instance {
	return (*caddy.Instance)(reflect.ValueOf(c).Elem().FieldByName("instance").UnsafePointer())
}
