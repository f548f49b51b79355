package lifecycle

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/telemetry"
)

// activeAgent implements handover.ActiveAgent: it hands this agent's node over to a successor.
type activeAgent struct {
	agent   *agent
	node    yielder
	server  *server.Server
	metrics *telemetry.Metrics
	lock    *os.File
	closing func() // ends reloads, and closes the listeners for metrics, health and status whose addresses the successor needs
	ending  func() // ends the agent as SIGTERM does
}

// yielder is the part of an arrangement that takes part in a handover: it lets a successor serve at the same time, and then hands the
// node over.
type yielder interface {
	AcceptSuccessor(successor string) (end func(), err error)
	Yield(ctx context.Context, successor string, addresses []netip.Addr) (decide func(taken bool), err error)
}

func (h *activeAgent) Claim() handover.Claim               { return h.agent.claim }
func (h *activeAgent) Lock() *os.File                      { return h.lock }
func (h *activeAgent) Sockets() ([]handover.Socket, error) { return h.server.Sockets() }

// saveWait is how long a handover waits for the cache's file. It is less than the 5 s that successors of earlier builds wait for the offer.
const saveWait = 3 * time.Second

// awaitSave runs save, and waits for its end for at most saveWait: a disk that hangs must not end handovers.
func awaitSave(save func()) {
	ctx, saved := context.WithTimeout(context.Background(), saveWait)
	go func() { // ends when the disk has answered
		save()
		saved()
	}()
	<-ctx.Done()
}

func (h *activeAgent) AcceptSuccessor(successor handover.Claim) (end func(), err error) {
	awaitSave(h.agent.answers.Save) // the successor's Serve loads the file, otherwise that of the last time
	alone, err := h.node.AcceptSuccessor(successor.Instance)
	if err != nil {
		return nil, err
	}
	resume := h.agent.hits.Pause()
	return func() {
		alone()
		if !h.agent.handedOver.Load() {
			resume()
		}
	}, nil
}

func (h *activeAgent) Yield(ctx context.Context, successor handover.Claim, addresses []netip.Addr) (func(taken bool), error) {
	decide, err := h.node.Yield(ctx, successor.Instance, addresses)
	if err != nil {
		return nil, err
	}
	return func(taken bool) {
		if taken {
			h.agent.handedOver.Store(true) // set first: decide(true) ends the node's loop, and then the cache must not be saved
		}
		decide(taken)
		if taken {
			h.closing()
		}
	}, nil
}

func (h *activeAgent) StepDown(successor handover.Claim) {
	h.agent.log.Warn("successor speaks another handover version; this agent stops so that it can start", "successor", successor.String())
	h.ending()
}

func (h *activeAgent) Done(successor handover.Claim, took time.Duration, err error) {
	var refused *handover.RefusedError
	switch {
	case err == nil:
		h.metrics.Handover("given")
		h.agent.log.Info("handed over to the successor", "to", successor.String(), "took", took.Round(time.Millisecond))
	case errors.As(err, &refused):
		h.metrics.Handover("refused")
	default:
		h.metrics.Handover("failed")
		h.agent.log.Warn("handover failed; this agent keeps the node", "to", successor.String(), "took", took.Round(time.Millisecond), "err", err)
	}
}
