package lifecycle

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// A disk that hangs delays a handover, and does not end it.
func TestHandoverOnAHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := make(chan struct{})
		begun := time.Now()
		awaitSave(func() { <-disk })
		testutil.Equal(t, "a save that hangs took", saveWait, time.Since(begun))
		close(disk)
		begun = time.Now()
		awaitSave(func() { time.Sleep(time.Second) })
		testutil.Equal(t, "a save of a second took", time.Second, time.Since(begun))
	})
}

func TestOneAgentAStateFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	lock, err := lockNode(dir, "process 7")
	testutil.Must(t, err)
	_, err = lockNode(dir, "process 8")
	if err == nil || !strings.Contains(err.Error(), "another agent (process 7) ") || !strings.Contains(err.Error(), dir) {
		t.Errorf("second holder: %v", err)
	}
	if !IsLocked(err) {
		t.Errorf("an error of another kind: %v", err)
	}
	testutil.Must(t, lock.Close())
	lock, err = lockNode(dir, "process 8")
	testutil.Must(t, err)
	testutil.Must(t, lock.Close())
}

// yieldingAgent is an active agent without sockets that hands its node over.
type yieldingAgent struct{ lock *os.File }

func (yieldingAgent) Claim() handover.Claim                          { return handover.Claim{Instance: "old", PID: 1, Born: 1} }
func (yieldingAgent) Sockets() ([]handover.Socket, error)            { return nil, nil }
func (yieldingAgent) AcceptSuccessor(handover.Claim) (func(), error) { return func() {}, nil }
func (yieldingAgent) StepDown(handover.Claim)                        {}
func (y yieldingAgent) Lock() *os.File                               { return y.lock }
func (yieldingAgent) Done(handover.Claim, time.Duration, error)      {}
func (yieldingAgent) Yield(context.Context, handover.Claim, []netip.Addr) (func(bool), error) {
	return func(bool) {}, nil
}

// During a handover files may change from which the successor has already made its plan.
func TestFilesAreStaleAfterAHandover(t *testing.T) {
	testutil.RequireRoot(t) // each step of a handover has its time
	dir, log, conf := t.TempDir(), slog.New(slog.DiscardHandler), config.Default()
	lock, err := lockNode(dir, "old")
	testutil.Must(t, err)
	defer lock.Close() //nolint:errcheck // at the end
	queries, err := handover.Listen(filepath.Join(dir, nodestate.HandoverName))
	testutil.Must(t, err)
	given := make(chan bool, 1)
	go func() { given <- handover.Give(t.Context(), log, queries, yieldingAgent{lock}) }()
	a := &agent{log: log, claim: handover.Claim{Instance: "new", PID: 2, Born: 2}, mayTake: true, answers: newAnswers(log, &conf)}
	o := &opened{plan: plan.Plan{Folders: plan.Folders{State: dir}, Lock: plan.Lock{Folder: dir}}, metrics: telemetry.New("")}
	s, err := a.takeNode(t.Context(), o)
	testutil.Must(t, err)
	defer s.lock.Close() //nolint:errcheck // at the end
	if !<-given || s.from == nil || !a.waited {
		t.Errorf("after a handover: %+v", s)
	}
}
