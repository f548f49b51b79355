package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
)

// asker puts upstreams and server behind the loop's interface: its own question goes to those whom a miss goes to. Where an
// operator's Corefile says how that is done, the question takes its chain, by a name that no cache can know.
type asker struct {
	*forward.Servers
	server *server.Server
}

// chainQuestions are sent at once where the chain is asked: forward's own servers are tried one after the other, by chance.
const chainQuestions = 3

func (a asker) Ask(ctx context.Context, domain string, pressing bool) error {
	err := a.Reach(ctx, "kubernetes.default.svc."+domain+".", pressing)
	if !errors.Is(err, forward.ErrNotAsked) {
		return err
	}
	count := 1
	if pressing {
		count = chainQuestions
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if errs[i] = a.server.Ask(ctx, domain); errs[i] == nil {
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

func (a asker) Heard(domain string) (time.Duration, bool) {
	return a.Servers.Heard("kubernetes.default.svc." + domain + ".")
}
