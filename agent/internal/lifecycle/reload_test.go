package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// reader is a role whose configuration is a file of `domain`, `domain other-file` or `domain other-file memoryMiB`.
func reader(name string) role {
	return role{
		read: func() (*config.Node, error) {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(string(text), "bad") {
				return nil, errors.New(name + ":1:1: unknown field")
			}
			conf := config.Default()
			words := strings.Fields(string(text))
			if len(words) > 2 {
				if conf.Cache.MemoryMiB, err = strconv.Atoi(words[2]); err != nil {
					return nil, err
				}
				words = words[:2]
			}
			conf.ClusterDomain = strings.Join(words, " ")
			return &conf, nil
		},
		derive: func(n *config.Node) (plan.Plan, upstream.Upstreams, error) {
			domain, file, _ := strings.Cut(n.ClusterDomain, " ")
			p, up := plan.Plan{ClusterDomain: domain}, upstream.Upstreams{}
			if file != "" {
				up.Files = []string{file}
				text, _ := os.ReadFile(file) // nil if the file is missing
				p.External = string(text)
			}
			return p, up, nil
		},
	}
}

// A change of the role's file, or of a file that the configuration in it names, triggers a reload, which sets a plan unless the
// configuration is refused.
func TestFollow(t *testing.T) {
	testutil.RequireRoot(t) // it watches real files
	dir := t.TempDir()
	name, other := filepath.Join(dir, "neardns.yaml"), filepath.Join(dir, "resolv.conf")
	write := func(file, text string) { t.Helper(); testutil.WriteFile(t, file, text) } // whole, or not at all
	write(name, "cluster.local")
	conf, err := reader(name).read()
	testutil.Must(t, err)
	log := slog.New(slog.DiscardHandler)
	kind, err := rules.Named("nftables")
	testutil.Must(t, err)
	a := &agent{role: reader(name), path: name, log: log, level: new(slog.LevelVar), conf: conf, answers: newAnswers(log, conf), clients: podindex.New(conf),
		backend: kind}
	a.clients.Follow(pods.Open(dir, kind, log))
	_, err = a.plan(conf)
	testutil.Must(t, err)
	write(name, "changed.local") // while it stood by
	type set struct {
		plan.Plan
		changed bool
	}
	var refuse atomic.Bool // the node refuses the plan
	plans, refusals, hangups := make(chan set, 8), make(chan struct{}, 8), make(chan os.Signal)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.follow(ctx, hangups, true, func(p plan.Plan, take func() bool) { plans <- set{p, !refuse.Load() && take()} }, func(ok bool) {
			if !ok {
				refusals <- struct{}{}
			}
		})
	}()
	given := func() set {
		t.Helper()
		return testutil.Receive(t, plans)
	}
	if p := given(); p.ClusterDomain != "changed.local" || !p.changed {
		t.Errorf("after it stood by: %q, changed: %t", p.ClusterDomain, p.changed)
	}
	hangups <- syscall.SIGHUP
	if p := given(); p.ClusterDomain != "changed.local" || p.changed {
		t.Errorf("after a hangup: %q, changed: %t", p.ClusterDomain, p.changed)
	}
	write(name, "bad")
	testutil.Receive(t, refusals)
	write(name, "k8s.example "+other)
	if p := given(); p.ClusterDomain != "k8s.example" {
		t.Errorf("after a change: %q", p.ClusterDomain)
	}
	if p := given(); p.ClusterDomain != "k8s.example" { // once more, when the file that it names is followed
		t.Errorf("with a file more to follow: %q", p.ClusterDomain)
	}
	write(other, "192.0.2.1")
	if p := given(); p.External != "192.0.2.1" || p.changed {
		t.Errorf("after a change of a file that the configuration names: %q, changed: %t", p.External, p.changed)
	}
	memory := a.config().Cache.MemoryMiB + 1
	write(name, fmt.Sprintf("k8s.example %s %d", other, memory)) // in no plan
	if p := given(); !p.changed {
		t.Error("a change of the cache's memory alone is not told")
	}
	testutil.Equal(t, "the cache's memory in MiB", memory, a.config().Cache.MemoryMiB)
	refuse.Store(true)
	write(name, fmt.Sprintf("refused.local %s %d", other, memory+1))
	given()
	if got := a.config(); got.Cache.MemoryMiB != memory || got.ClusterDomain != "k8s.example "+other {
		t.Errorf("a configuration that the node refused is in force: %d MiB, %s", got.Cache.MemoryMiB, got.ClusterDomain)
	}
	cancel()
	<-ended
	if len(plans) > 0 || len(refusals) > 0 {
		t.Errorf("%d plans and %d refusals more", len(plans), len(refusals))
	}
}

// If a file that a refused configuration names is at fault, a change of it triggers a reload, and so does a change of a file of the plan in
// effect.
func TestFilesOfARefusedPlan(t *testing.T) {
	a := &agent{log: slog.New(slog.DiscardHandler), path: "neardns.yaml"}
	a.role.derive = func(n *config.Node) (plan.Plan, upstream.Upstreams, error) {
		return plan.Read(n, func(name string) ([]byte, error) {
			if name == "good" {
				return []byte("nameserver 192.0.2.1\n"), nil
			}
			return nil, fs.ErrNotExist
		}, "")
	}
	for _, c := range []struct {
		file    string
		refused bool
		want    []string
	}{
		{"good", false, []string{"good", "neardns.yaml"}},
		{"missing", true, []string{"good", "missing", "neardns.yaml"}},
		{"missing", true, []string{"good", "missing", "neardns.yaml"}},
		{"good", false, []string{"good", "neardns.yaml"}},
	} {
		conf := config.Default()
		conf.KubeDNSConfigMap, conf.Upstreams.Auto, conf.Upstreams.External = "", false, []nameserver.Source{{Path: c.file}}
		if _, err := a.plan(&conf); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.file, err)
		}
		testutil.Equal(t, c.file, c.want, a.followed())
	}
}

// The pods' registry reads the configuration in effect while a reload replaces it.
func TestExcludesDuringAReload(t *testing.T) {
	log, conf, next := slog.New(slog.DiscardHandler), config.Default(), config.Default()
	conf.AdoptPods, next.AdoptPods, next.Steer.Mode = false, false, config.SteerNone
	a := &agent{log: log, level: new(slog.LevelVar), conf: &conf, answers: newAnswers(log, &conf), clients: podindex.New(&conf)}
	o := opened{plan: plan.Plan{Folders: plan.Folders{State: t.TempDir()}}}
	a.openPods(&o)
	var reload sync.WaitGroup
	reload.Go(func() { a.take(&next) })
	testutil.Equal(t, "an adopted pod, during the reload", "adoptPods is false", o.registry.Excludes(podfile.File{Adopted: podfile.ByCache}))
	reload.Wait()
	if why := o.registry.Excludes(podfile.File{}); !strings.Contains(why, "steer.mode is none") {
		t.Errorf("another pod, after the reload: %q", why)
	}
}
