package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestPodsCommand checks that the command reads a running agent's socket, or without an agent the pod files.
func TestPodsCommand(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, podfile.Write(dir, podfile.File{
		PodNamespace: "shop", PodName: "web", ContainerID: "c0", IfName: "eth0", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
	}))
	lines := "stateDir: " + dir + "\npersistDir: " + dir + "/lib\n"
	e, out, errs := fake(map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\n" + lines})
	args := []string{"pods", "--config", "/node.yaml"}
	if code := run(t.Context(), e, args); code != cli.Degraded || !strings.Contains(out.String(), "shop/web") || !strings.Contains(errs.String(), "no agent runs on this node") {
		t.Errorf("without an agent: %d\n%s%s", code, out, errs)
	}
	conf, err := loadConfig(e, "/node.yaml")
	testutil.Must(t, err)
	c := podindex.New(conf)
	c.Follow(pods.Open(dir, rules.Kind{}, slog.New(slog.DiscardHandler)))
	c.Record(queryinfo.Answer{Identity: c.Identify(netip.MustParseAddr("10.244.1.5"))})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		telemetry.ServeSocket(ctx, slog.New(slog.DiscardHandler), dir+"/"+nodestate.AgentSocketName, telemetry.Health{Pods: func() any { return inspect.PodViews(c.Pods()) }}.SocketHandler())
	}()
	defer func() { stop(); <-done }()
	testutil.RequireRoot(t) // a real socket, which another goroutine makes
	testutil.Eventually(t, func() error {
		out.Reset()
		code := run(t.Context(), e, append(args, "--json"))
		return testutil.ErrorIf(code != cli.Good, "exit code %d", code)
	})
	if !strings.Contains(out.String(), `"queries": 1`) {
		t.Errorf("with one:\n%s", out)
	}
}
