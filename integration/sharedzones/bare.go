package main

import (
	"context"
	"fmt"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// perChange is how many times as long as bare updates a row may take that writes the same records. A bare update is the server's write
// alone. A cluster's change is that, and as much work again at most: the cluster reads the records that it builds on, and the server
// compares them with the prerequisites. A longer time is ours: reads or messages too many, or pauses.
const perChange = 2

// bareUpdates measures the server without the product: it writes the records that the clusters wrote into an empty zone, in as many signed
// updates, by as many clients at once, which neither read nor compare. It ends the stand's clusters and its server, which would take the
// processor from it.
func (s *stand) bareUpdates(messages int) (time.Duration, error) {
	s.t.Helper()
	for _, c := range s.all { // before the transfer: BIND refuses one more than ten
		c.process.Kill()
	}
	zone, err := s.server.Transfer()
	if err != nil {
		return 0, err
	}
	s.server.Kill()
	server := zoneserver.Start(s.t, s.server.Kind(), s.config)
	updates := deal(server.Zone(), zone, messages)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	start := time.Now()
	var writing errgroup.Group
	for client := range s.all {
		writing.Go(func() error {
			for i := client; i < len(updates); i += len(s.all) {
				if err := persist(ctx, server, updates[i]); err != nil {
					return fmt.Errorf("update %d of %d: %w", i, len(updates), err)
				}
			}
			return nil
		})
	}
	if err := writing.Wait(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	written, err := server.Transfer()
	if err != nil {
		return 0, err
	}
	if lost, left := differences(held(server.Zone(), zone), held(server.Zone(), written)); len(lost)+len(left) > 0 {
		return 0, fmt.Errorf("lost %d %s, left over %d %s", len(lost), few(lost), len(left), few(left))
	}
	return took, nil
}

// deal makes n updates that add a zone's records without the server's own, as many records in each. The records of a set go into
// different updates, as they do where clusters share hosts.
func deal(origin string, zone []dns.RR, n int) []*dns.Msg {
	updates := make([]*dns.Msg, max(n, 1)) // 0: no cluster could write
	for i := range updates {
		updates[i] = new(dns.Msg).SetUpdate(origin)
	}
	i := 0
	for _, rr := range zone {
		if !serversOwn(origin, rr) {
			updates[i%len(updates)].Insert([]dns.RR{dns.Copy(rr)})
			i++
		}
	}
	return updates
}
