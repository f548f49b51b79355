package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/secondary"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
)

// primary is a primary from which a zone is only transferred whole.
type primary struct {
	read func(ctx context.Context) ([]dns.RR, error)
}

func (p *primary) Serial(ctx context.Context) (uint32, error) { _, err := p.read(ctx); return 1, err }

func (p *primary) AXFR(ctx context.Context) (*rfc2136.Transfer, error) {
	list, err := p.read(ctx)
	return &rfc2136.Transfer{Serial: 1, Full: list}, err
}

func (p *primary) IXFR(ctx context.Context, _ uint32) (*rfc2136.Transfer, error) { return p.AXFR(ctx) }

// An edge is Ready with one zone, if it has tried to read the others. A zone that is added later, and is slow, does not end that.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		follow := func(read func(context.Context) ([]dns.RR, error)) *secondary.Copy {
			c := secondary.New(slog.New(slog.DiscardHandler), "shared.example.", filepath.Join(t.TempDir(), "zone"),
				&primary{read}, func([]dns.RR) error { return nil })
			wg.Go(func() { c.Run(ctx) })
			return c
		}
		soa := []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "shared.example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET}, Serial: 1}}
		good := follow(func(context.Context) ([]dns.RR, error) { return soa, nil })
		away := follow(func(context.Context) ([]dns.RR, error) { return nil, errors.New("connection refused") })
		slow := follow(func(ctx context.Context) ([]dns.RR, error) { <-ctx.Done(); return nil, ctx.Err() })
		synctest.Wait()
		var started atomic.Bool
		for i, row := range []struct {
			copies []*secondary.Copy
			want   bool
		}{
			{[]*secondary.Copy{away}, false},
			{[]*secondary.Copy{good, slow}, false},
			{[]*secondary.Copy{away, good}, true},
			{[]*secondary.Copy{away, good, slow}, true},
			{[]*secondary.Copy{slow, away}, false},
			{[]*secondary.Copy{good}, true},
		} {
			if got, missing := ready(row.copies, &started); got != row.want || (missing == "") != (i == 5) {
				t.Errorf("row %d: ready %t, %q", i, got, missing)
			}
		}
	})
}
