package zonefile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// file writes a file with a DNSZone, the operator's key and, if there are addresses, a DNSRecord for app.shared.example.
func file(t *testing.T, s *zoneserver.Server, strategy string, addresses ...string) string {
	t.Helper()
	k := s.Operator()
	objects := strings.Split(good, "---\n")
	all := strings.NewReplacer("operator.shared.example", k.Name, "c2VjcmV0", k.Secret, "192.0.2.53", s.Addr().String()).Replace(objects[0] + "---\n" + objects[1])
	if len(addresses) > 0 {
		all += "---\n" + strings.Replace(objects[2], "[192.0.2.1]", "["+strings.Join(addresses, ", ")+"], strategy: "+strategy, 1)
	}
	path := t.TempDir() + "/zone.yaml"
	testutil.Must(t, os.WriteFile(path, []byte(all), 0o600))
	return path
}

func once(t *testing.T, file, cluster string, prune bool) (string, error) {
	t.Helper()
	var out testutil.Output
	err := Publish(testutil.Context(t), Publishing{File: file, Identity: zone.Identity{Cluster: cluster, Instance: "of" + cluster}, Prune: prune, Once: true,
		Out: &out, Log: slog.New(slog.DiscardHandler)})
	return out.String(), err
}

// The commands in the order of a life: join, look, clash, leave, and the removal of one that died.
func TestCommands(t *testing.T) {
	for _, kind := range zoneserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			zoneserver.Require(t, kind)
			s := zoneserver.Start(t, kind, zoneserver.Config{})
			ctx := t.Context()
			first, second := file(t, s, "Simple", "192.0.2.1", "192.0.2.2"), file(t, s, "Simple", "192.0.2.2", "192.0.2.3")
			open := func(path string) *View {
				t.Helper()
				v, err := Open(path, "")
				testutil.Must(t, err)
				return v
			}
			says := func(what string, do func(*testutil.Output) error, want ...string) {
				t.Helper()
				var out testutil.Output
				testutil.Check(t, do(&out), what)
				for _, w := range want {
					if !strings.Contains(out.String(), w) {
						t.Errorf("%s says:\n%s\nwant %q", what, out.String(), w)
					}
				}
			}
			// removes takes away what is left of a cluster, again where a busy server gave no answer in time: it may have done all the same.
			removes := func(cluster string) {
				t.Helper()
				testutil.Eventually(t, func() error {
					var out testutil.Output
					err := open(first).Remove(ctx, &out, cluster, true, time.Nanosecond)
					if err == nil && !strings.Contains(out.String(), "nothing of "+cluster+" is left") {
						t.Errorf("remove --yes says:\n%s", out.String())
					}
					if err != nil && strings.Contains(err.Error(), "has nothing of cluster "+cluster) {
						return nil
					}
					return err
				})
			}
			me := zone.Identity{Cluster: "aaaaaaaa", Instance: "ofaaaaaaaa"}
			says("plan", func(o *testutil.Output) error { return open(first).Plan(ctx, o, me) }, "prereq nxrrset", "update add app.shared.example. 60 A 192.0.2.1", "send")
			says("check", func(o *testutil.Output) error { return open(first).Check(ctx, o) }, "DNSRecord default/app: Accepted", "0 hosts of 0 clusters")
			for cluster, path := range map[string]string{"aaaaaaaa": first, "bbbbbbbb": second} {
				if out, err := once(t, path, cluster, false); err != nil || !strings.Contains(out, "app.shared.example. programmed") {
					t.Fatalf("%s: %v\n%s", cluster, err, out)
				}
			}
			says("get", func(o *testutil.Output) error { return open(first).Get(ctx, o, "app.shared.example") },
				"192.0.2.1 192.0.2.2 192.0.2.3  aaaaaaaa", "bbbbbbbb", "192.0.2.2 192.0.2.3\n")
			says("owners", func(o *testutil.Output) error { return open(first).Owners(ctx, o, 0) }, "aaaaaaaa  ofaaaaaaaa  ", "bbbbbbbb  ofbbbbbbbb  ", "unknown")
			says("plan again", func(o *testutil.Output) error { return open(first).Plan(ctx, o, me) }, "; nothing is to be done")
			// Another strategy.
			if out, err := once(t, file(t, s, "LoadBalanced", "192.0.2.4"), "cccccccc", false); err == nil || !strings.Contains(out, "ConflictingStrategyDiscovered") {
				t.Errorf("another strategy: %v\n%s", err, out)
			}
			// A file without the record, with and without --prune.
			if out, err := once(t, file(t, s, ""), "aaaaaaaa", false); err != nil {
				t.Errorf("without --prune: %v\n%s", err, out)
			}
			out, err := once(t, file(t, s, "Wrong", "192.0.2.1"), "aaaaaaaa", true)
			if !errors.Is(err, ErrConflict) || strings.Contains(out, "left") {
				t.Errorf("--prune, with a record that is not accepted: %v\n%s", err, out)
			}
			says("get after", func(o *testutil.Output) error { return open(first).Get(ctx, o) }, "aaaaaaaa")
			if out, err := once(t, file(t, s, ""), "aaaaaaaa", true); err != nil || !strings.Contains(out, "app.shared.example. left") {
				t.Errorf("with --prune: %v\n%s", err, out)
			}
			says("remove", func(o *testutil.Output) error { return open(first).Remove(ctx, o, "bbbbbbbb", false, 0) },
				"prereq yxrrset bbbbbbbb._neardns.shared.example. TXT", "update delete app.shared.example. A 192.0.2.3", "nothing was sent")
			says("get still", func(o *testutil.Output) error { return open(first).Get(ctx, o) }, "192.0.2.2 192.0.2.3")
			removes("bbbbbbbb")
			testutil.WantError(t, open(first).Remove(ctx, &testutil.Output{}, "bbbbbbbb", true, 0), "has nothing of cluster bbbbbbbb", "remove once more")
			removes("aaaaaaaa") // it ended before it took its heartbeat away, or just after
			rest, err := s.Transfer()
			if err != nil || len(rest) != 3 {
				t.Errorf("left over: %v, %v", rest, err)
			}
		})
	}
}

// A cluster that beats is not removed, and a file that became bad changes nothing.
func TestAlive(t *testing.T) {
	zoneserver.Require(t, zoneserver.Knot)
	s := zoneserver.Start(t, zoneserver.Knot, zoneserver.Config{})
	path := file(t, s, "Simple", "192.0.2.1")
	beating := strings.Replace(testutil.ReadFile(t, path), "  publishers:", "  heartbeatSeconds: 1\n  publishers:", 1)
	testutil.Must(t, os.WriteFile(path, []byte(beating), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	var out, log testutil.Output
	reread, ended := make(chan os.Signal), make(chan error)
	go func() {
		ended <- Publish(ctx, Publishing{File: path, Identity: zone.Identity{Cluster: "aaaaaaaa", Instance: "one"}, JSON: true, Reread: reread,
			Out: &out, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	wantText := func(out *testutil.Output, want string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			return testutil.ErrorIf(!strings.Contains(out.String(), want), "printed:\n%s\nwant %s", out, want)
		})
	}
	wantText(&out, `{"host":"app.shared.example.","programmed":true`)
	v, err := Open(path, "")
	testutil.Must(t, err)
	testutil.WantError(t, v.Remove(ctx, &testutil.Output{}, "aaaaaaaa", true, 3*time.Second), ErrAlive.Error(), "a cluster that beats")
	testutil.Must(t, os.WriteFile(path, []byte("kind: nonsense\n"), 0o600))
	reread <- syscall.SIGHUP
	wantText(&log, "what was not applied keeps its earlier content")
	testutil.Must(t, os.WriteFile(path, []byte(strings.Replace(beating, "192.0.2.1]", "192.0.2.7]", 1)), 0o600))
	reread <- syscall.SIGHUP
	testutil.Eventually(t, func() error {
		var now testutil.Output
		err := v.Get(ctx, &now)
		return testutil.ErrorIf(err != nil || !strings.Contains(now.String(), "192.0.2.7") || strings.Contains(now.String(), "192.0.2.1"),
			"%w\n%s", err, now.String())
	})
	owners := func(watch time.Duration, state string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			var now testutil.Output
			// At the end of a line, because the sentence below the table has the word "silent" too.
			err := v.Owners(t.Context(), &now, watch)
			return testutil.ErrorIf(err != nil || !strings.Contains(now.String(), " "+state+"\n"),
				"%w: not %s:\n%s", err, state, now.String())
		})
	}
	owners(time.Second, "alive")
	cancel()
	testutil.Check(t, <-ended)
	owners(zone.ReportAfter*time.Second, "silent")
}
