package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/conformance"
)

// tally counts over the lives of the agent, whose own counters begin again with each.
type tally struct {
	before uint64 // answered before the run, by the life that it began with
	done   uint64 // answered in lives that ended
	kills  int
}

// killed notes the end of a life, and what it had answered when it was last looked at.
func (t *tally) killed(answered uint64) {
	t.kills++
	t.done += answered
}

// since the run began; answered is what the present life did.
func (t *tally) since(answered uint64) uint64 { return t.done + answered - t.before }

// agent is the node's.
type agent struct {
	node *node.Node
	tally
}

// begin notes what was answered before the run.
func (a *agent) begin(ctx context.Context) (err error) {
	a.before, err = a.answered(ctx)
	return err
}

// questions of pods that were answered since begin. Those between the last look at a life and its end are not among them.
func (a *agent) questions(ctx context.Context) (uint64, error) {
	now, err := a.answered(ctx)
	return a.since(now), err
}

// answered is the agent's own count.
func (a *agent) answered(ctx context.Context) (uint64, error) {
	metrics, err := a.node.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/http:"+node.Name+":9253/proxy/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the agent's metrics: %w", err)
	}
	return conformance.Questions(strings.NewReader(metrics))
}

// killAgainAndAgain kills the agent until ctx ends. The kubelet starts it again.
func (a *agent) killAgainAndAgain(ctx context.Context) error {
	for t := time.NewTicker(interval); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		answered, err := a.answered(ctx)
		if err != nil {
			continue // it does not serve yet, or the run is over
		}
		pids, err := a.node.Agents()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if _, err := a.node.Run(ctx, "kill", "-KILL", strconv.Itoa(pid)); err == nil { // else it had ended
				a.killed(answered)
				break
			}
		}
	}
}
