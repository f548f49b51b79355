package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
)

// upstreamChecker implements node.Upstreams: it checks whether the servers to which misses are forwarded answer. If an operator's
// Corefile decides how to forward, the check sends a query through that Corefile's plugin chain, for a name that no cache can have.
type upstreamChecker struct {
	*forward.Servers
	server *server.Server
}

// chainQueries is the number of queries that one urgent check sends through a plugin chain at the same time, because CoreDNS's forward
// plugin chooses a server at random for each.
const chainQueries = 3

func (a upstreamChecker) Check(ctx context.Context, domain string, pressing bool) error {
	err := a.Reach(ctx, "kubernetes.default.svc."+domain+".", pressing)
	if !errors.Is(err, forward.ErrNotAsked) {
		return err
	}
	count := 1
	if pressing {
		count = chainQueries
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if errs[i] = a.server.Query(ctx, domain); errs[i] == nil {
				cancel()
			}
		})
	}
	if wg.Wait(); slices.Contains(errs, nil) {
		return nil
	}
	return errs[0]
}

func (a upstreamChecker) LastAnswer(domain string) (time.Duration, bool) {
	return a.Servers.Heard("kubernetes.default.svc." + domain + ".")
}
