package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
)

// upstreamChecker implements node.Upstreams: the agent's own queries go to the servers that misses are forwarded to. If an operator's
// Corefile decides how misses are forwarded, the query passes through its plugin chain, for a name that no cache can have.
type upstreamChecker struct {
	*forward.Servers
	server *server.Server
}

// chainQueries is how many queries go through a plugin chain at once, because CoreDNS's forward chooses one server at random for each.
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
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}

func (a upstreamChecker) LastAnswer(domain string) (time.Duration, bool) {
	return a.Servers.Heard("kubernetes.default.svc." + domain + ".")
}
