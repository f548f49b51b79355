package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// maxQueried is the maximum number of pods from which QueryKubeDNS queries. It is more than one, because a pod may have a policy of its
// own, or be terminating.
const maxQueried = 3

// QueryKubeDNS queries clusterDNS over UDP for name's address from the netns of up to maxQueried steered pods, and so from their addresses
// and by their routes. It returns nil at the first answer with NOERROR or NXDOMAIN, and an error once all queries failed. sent is false,
// with a nil error, if no steered pod's netns could be used. Call it only without a lease: the queries take the pods' own path, so under
// a lease the agent would answer them.
func (p *Pods) QueryKubeDNS(ctx context.Context, clusterDNS netip.Addr, name string) (sent bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	files, _ := p.read() // Reconcile reports unreadable files
	answers, queried := make(chan error, maxQueried), 0
	for _, f := range files {
		if !slices.ContainsFunc(f.In(podfile.Steered), func(r steer.Redirect) bool { return r.ClusterDNS == clusterDNS }) {
			continue
		}
		ns, err := enter(f)
		if err != nil {
			continue
		}
		go func() { // ends with ctx at the latest
			defer ns.Close()
			answers <- prober.LookUp(ctx, ns, clusterDNS, name)
		}()
		if queried++; queried == maxQueried {
			break
		}
	}
	for range queried {
		one := <-answers
		if one == nil {
			return true, nil
		}
		err = errors.Join(err, fmt.Errorf("query from a pod: %w", one))
	}
	return queried > 0, err
}
