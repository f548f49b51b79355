package lifecycle

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// Options are those of the role `node`.
type Options struct {
	Config string // the NodeConfig's file; "": everything is detected on the node
	// TakeOver makes it take over from the agent that runs on this node, whichever of the two is newer.
	TakeOver bool
	// PodDir is a folder of the agent's pod alone, which lives as long as the pod. With it, the agent takes over from the agent of an older
	// pod, and has a second status socket there. "": there is none.
	PodDir string
	// Cache is the root of libcni's cache, which lists the pods that run already.
	Cache string
}

// load reads the NodeConfig.
func load(e Env, path string) (*config.Node, error) {
	return config.Load(path, config.Env{LookupEnv: e.LookupEnv, ReadFile: e.ReadFile, Glob: filepath.Glob})
}

// setUpProcess opens the log, logs detected values and unknown keys, and bounds the process's memory.
func setUpProcess(e Env, conf *config.Node) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(conf.Log.Level)
	log := telemetry.NewLogger(e.Stderr, level, conf.Log.Format == config.LogJSON)
	for _, d := range conf.Detected() {
		log.Info("detected", "field", d.Field, "value", d.Value, "source", d.Source)
	}
	warnUnknown(log, conf)
	process.LimitMemory(log, e.LookupEnv)
	return log, level
}

// Node serves this node by a NodeConfig until ctx ends or a successor has the node.
func Node(ctx context.Context, e Env, o Options) error {
	conf, err := load(e, o.Config)
	if err != nil {
		return &ConfigError{err}
	}
	log, level := setUpProcess(e, conf)
	a := &agent{env: e, path: o.Config, log: log, level: level, conf: conf, instance: newInstance(), podDir: o.PodDir, cache: o.Cache}
	a.role = role{
		read: func() (*config.Node, error) { return load(e, o.Config) },
		derive: func(n *config.Node) (plan.Plan, upstream.Upstreams, error) {
			return plan.Read(n, e.ReadFile, a.instance)
		},
	}
	born, err := handover.Birth(o.PodDir)
	if err != nil {
		// If the age of its pod is unknown, it must not take the node from an agent that may be newer.
		log.Warn("age of this agent's pod unknown; it takes over from no agent", "err", err)
	}
	a.mayTake = o.TakeOver || o.PodDir != "" && err == nil
	pod, _ := e.LookupEnv("POD_NAME") // only for messages
	a.claim = handover.Claim{Instance: a.instance, PID: os.Getpid(), Pod: pod, Version: e.Version, Since: time.Now(),
		Born: born, TakeOver: o.TakeOver}
	kernel := steer.Kernel()
	log.Info("starting", "version", e.Version, "instance", a.instance, "kernel", kernel)
	if steer.OlderThanTried(kernel) {
		log.Warn("kernel is older than any that neardns is tested with; checking what it supports", "kernel", kernel,
			"oldest_tested", steer.LeastKernel)
	}
	for _, what := range missingFeatures(iptables.MissingPrograms()) {
		log.Info("feature unavailable", "what", what)
	}
	return a.runUntilEnd(ctx)
}
