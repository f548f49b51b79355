package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func TestHandOver(t *testing.T) {
	r := newRig(t)
	s := &side{}
	defer s.close()
	taken, err := r.take(s, newer)
	testutil.Must(t, err)
	defer taken.Lock.Close()
	if taken.From != older || taken.Took <= 0 {
		t.Errorf("taken: %+v", taken)
	}
	testutil.Check(t, <-r.holder.ended, "the holder's error")
	if !<-r.given {
		t.Error("Give does not know that it gave")
	}
	testutil.Equal(t, "holder", []string{"accepted", "sockets", "yield", "decided true", "apart"}, r.holder.log())
	testutil.Equal(t, "successor", []string{"serve"}, s.log())
	// The descriptors are the holder's own files.
	for name, pair := range map[string][2]*os.File{"socket": {r.holder.pipe, s.opened[0].File}, "lock": {r.holder.lock, taken.Lock}} {
		a, errA := pair[0].Stat()
		b, errB := pair[1].Stat()
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			t.Errorf("%s: another file: %v %v", name, errA, errB)
		}
	}
}

// TestEveryStepMayFail injects faults at steps of both sides: the holder goes on, what was begun is undone, and the next successor gets
// the node.
func TestEveryStepMayFail(t *testing.T) {
	for _, tc := range []struct {
		name              string
		holder, successor string
		want              string // in the successor's error
		abandons, decides bool
	}{
		{"ending", "accepted", "", "accepted fails", false, false},
		{"sockets", "sockets", "", "sockets fails", false, false},
		{"serve", "", "serve", "serve fails", true, false},
		{"proof", "yield", "", "yield fails", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.holder.fails = tc.holder })
			s := &side{fails: tc.successor}
			defer s.close()
			_, err := r.take(s, newer)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("want %q, got %v", tc.want, err)
			}
			var refused *RefusedError
			if tc.holder != "" && (!errors.As(err, &refused) || !refused.Later || refused.By != older) {
				t.Errorf("not a refusal that may be asked again: %#v", err)
			}
			testutil.Equal(t, fmt.Sprintf("successor: %v; abandon", s.log()), tc.abandons, slices.Contains(s.log(), "abandon"))
			if tc.holder != "accepted" {
				if err := <-r.holder.ended; err == nil {
					t.Error("the holder takes it for a success")
				}
				if !slices.Contains(r.holder.log(), "apart") {
					t.Errorf("the successor's answers still count: %v", r.holder.log())
				}
			}
			for _, c := range r.holder.log() {
				if strings.HasPrefix(c, "decided") {
					t.Errorf("holder: %v", r.holder.log())
				}
			}
			r.holder.mu.Lock()
			r.holder.fails = ""
			r.holder.mu.Unlock()
			next := &side{}
			defer next.close()
			r.takeNext(t, next)
		})
	}
}

// TestNoDescriptors: a successor connects while the holder has no descriptor left. Once there are some, the next successor gets the node.
func TestNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)   // it runs in a process of its own
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	r := newRig(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	f := os.NewFile(uintptr(fd), "successor")
	defer f.Close()
	lift := testutil.NoDescriptors(t)
	testutil.Must(t, unix.Connect(fd, &unix.SockaddrUnix{Name: r.path}))
	testutil.Eventually(t, func() error {
		if !strings.Contains(r.log.String(), "cannot accept connections from successors") {
			return errors.New("the holder has not noticed that it cannot meet its successor")
		}
		return nil
	})
	lift()
	s := &side{}
	defer s.close()
	f.Close()
	r.takeNext(t, s)
}

// TestCacheOfAnEarlierBuild: what such an active agent sends is passed over.
func TestCacheOfAnEarlierBuild(t *testing.T) {
	ours, theirs := pair(t)
	go func() {
		for _, piece := range []string{"cabc", "c", "cdef"} {
			_, _ = theirs.Write([]byte(piece))
		}
		_ = theirs.send(kindCacheEnd, nil, ages)
	}()
	testutil.Must(t, (&taker{conn: ours, waits: unhurried}).passCache())
}

// TestSuccessorDies ends the successor's connection at each of its steps: the holder goes on.
func TestSuccessorDies(t *testing.T) {
	type message struct {
		kind kind
		body any
	}
	hello := message{kindHello, hello{Version: Version, Claim: newer}}
	serves := message{kindServing, serving{Addresses: []netip.Addr{at.Addr()}}}
	for _, tc := range []struct {
		name    string
		send    []message
		decided bool // it got as far as the proof
	}{
		{"after hello", []message{hello}, false},
		{"after serving", []message{hello, serves}, true},
		{"out of order", []message{hello, {kindTaken, nil}}, false},
		{"hello twice", []message{hello, hello}, false},
		{"serves, then gives up", []message{hello, serves, {kindRefusal, refusal{Reason: "no"}}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			c := r.dial(t)
			for i, m := range tc.send {
				testutil.Must(t, c.send(m.kind, m.body, ages))
				if i == 0 {
					c.passOffer(t)
				}
			}
			c.Close()
			if err := <-r.holder.ended; err == nil {
				t.Error("the holder takes it for a success")
			}
			testutil.Equal(t, fmt.Sprintf("holder: %v", r.holder.log()), tc.decided, slices.Contains(r.holder.log(), "decided false"))
			if slices.Contains(r.holder.log(), "decided true") {
				t.Errorf("holder: %v", r.holder.log())
			}
			s := &side{}
			defer s.close()
			r.takeNext(t, s)
		})
	}
}

// TestRefusals are all reasons not to begin.
func TestRefusals(t *testing.T) {
	busy := make(chan error, 1)
	r := newRig(t, func(r *rig) {
		r.holder.hook["sockets"] = func() {
			_, err := r.take(&side{}, newer)
			busy <- err
		}
	})
	var refused *RefusedError
	if _, err := r.take(&side{}, Claim{Instance: "still-older", PID: 1, Born: 50}); !errors.As(err, &refused) || refused.Later || !strings.Contains(err.Error(), "process 7 (version v1, since 2001-09-09T01:46:40Z) refused: the active agent's pod is not older") {
		t.Errorf("an older one: %v", err)
	}
	<-r.holder.ended
	// Two at once.
	s := &side{}
	defer s.close()
	taken, err := r.take(s, newer)
	testutil.Must(t, err)
	taken.Lock.Close()
	if err := <-busy; !errors.As(err, &refused) || !refused.Later {
		t.Errorf("the second of two: %v", err)
	}
}

// TestOtherVersion: for a newer agent that speaks another version the holder stops; an older one is refused.
func TestOtherVersion(t *testing.T) {
	for _, tc := range []struct {
		born string
		want string
		room bool
	}{{"200", "handover version 1, not 2, and ends instead", true}, {"50", "is not older", false}} {
		r := newRig(t)
		c := r.dial(t)
		_, err := c.Write([]byte(`h{"version":2,"claim":{"instance":"x","pid":9,"version":"v9","born":` + tc.born + `,"more":1},"more":true}`))
		testutil.Must(t, err)
		var m refusal
		if _, err := c.receive(ages, kindRefusal, &m); err != nil || m.Later != tc.room || !strings.Contains(m.Reason, tc.want) {
			t.Errorf("%+v, %v", m, err)
		}
		if _, err := c.receive(ages, kindTaken, nil); !errors.Is(err, errEnded) { // now it has acted
			t.Errorf("want the end, got %v", err)
		}
		if calls := r.holder.log(); slices.Contains(calls, "step-down x") != tc.room {
			t.Errorf("born %s: holder: %v", tc.born, calls)
		}
	}
}

// TestHolderIsSilent: a holder that never answers (stopped), and one that is gone.
func TestHolderIsSilent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handover.sock")
	take := func(ctx context.Context) error {
		_, err := unhurriedTaker(&side{}).run(ctx, path, newer)
		return err
	}
	if err := take(t.Context()); !errors.Is(err, ErrNoActiveAgent) {
		t.Errorf("no socket: %v", err)
	}
	l, err := Listen(path)
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan error, 1)
	go func() { said <- take(ctx) }()
	conn, err := l.AcceptUnix()
	testutil.Must(t, err)
	cancel() // the successor itself is instructed to end
	if err := <-said; err == nil {
		t.Error("taken from a silent holder")
	}
	conn.Close()
	l.Close()
	if err := take(t.Context()); !errors.Is(err, ErrNoActiveAgent) {
		t.Errorf("a socket that is left: %v", err)
	}
}

// TestOneOwner: in each order of the successor's "taken" and the end of the active agent's wait for it, exactly one of them has the node,
// also if the active agent was stopped and reads the message long after its wait.
func TestOneOwner(t *testing.T) {
	const ended = -time.Second // a wait that has passed
	for _, tc := range []struct {
		name  string
		late  bool // "taken" is sent after the wait
		wait  time.Duration
		taken bool
	}{
		{"taken in time", false, ages, true},
		{"taken in time, read late", false, ended, true},
		{"taken late", true, ended, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "handover.sock")
			l, err := Listen(path)
			testutil.Must(t, err)
			defer l.Close()
			file, err := os.Create(filepath.Join(t.TempDir(), "file"))
			testutil.Must(t, err)
			defer file.Close()
			s, result := &side{}, make(chan error, 1)
			defer s.close()
			go func() {
				taken, err := unhurriedTaker(s).run(t.Context(), path, newer)
				if err == nil {
					taken.Lock.Close()
				}
				result <- err
			}()
			raw, err := l.AcceptUnix()
			testutil.Must(t, err)
			c, err := newConn(raw)
			testutil.Must(t, err)
			defer c.Close()
			_, err = c.receive(ages, kindHello, new(hello))
			testutil.Must(t, err)
			sockets := []Socket{{Protocol: "udp", Address: at}}
			testutil.Must(t, c.send(kindOffer, offer{Claim: older, Sockets: sockets}, ages, file))
			testutil.Must(t, c.send(kindCacheEnd, nil, ages))
			_, err = c.receive(ages, kindServing, new(serving))
			testutil.Must(t, err)
			yours := func() error { return c.send(kindYours, nil, ages, file) }
			if !tc.late {
				testutil.Must(t, yours())
				err = <-result
			}
			last := c.receiveLast(tc.wait, kindTaken)
			if tc.late { // what was sent before the wait's end is read after it
				testutil.Must(t, yours())
				err = <-result
			}
			given := last == nil
			if given != tc.taken || (err == nil) != tc.taken || slices.Contains(s.log(), "abandon") == tc.taken {
				t.Errorf("given: %t; taken: %v, %v; want %t", given, err, s.log(), tc.taken)
			}
			c.awaitClose(t.Context(), ages) // the successor has ended
		})
	}
}

// TestForeignUser: only root's and our own user's processes are spoken to.
func TestForeignUser(t *testing.T) {
	ours, _ := pair(t)
	if err := checkPeer(ours.UnixConn); err != nil { // a socketpair's credentials are its maker's
		t.Errorf("ourselves: %v", err)
	}
	testutil.WantError(t, checkUser(&unix.Ucred{Uid: 4711}), "4711", "a stranger")
}
