package lifecycle

import (
	"context"
	"log/slog"
	"os"
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

// Options are the command-line options of the role `node`.
type Options struct {
	Config string // path of the NodeConfig file; "": each value is detected on the node or is the default
	// TakeOver makes the agent take over from the active agent even if that one is newer.
	TakeOver bool
	// PodDir is a folder that only this agent's pod has and that lives as long as the pod. With it, the agent takes over from an active
	// agent whose pod is older, and serves a second status socket in the folder. "": there is no such folder.
	PodDir string
	// Cache is the root of libcni's cache, which lists the pods that already run.
	Cache string
}

// setUpProcess makes the logger, logs filled-in values and unknown keys, and limits the process's memory.
func setUpProcess(e Env, conf *config.Node) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(conf.Log.Level)
	log := telemetry.NewLogger(e.Stderr, level, conf.Log.Format == config.LogJSON)
	for _, d := range conf.Detected() {
		log.Info("configuration value filled in from its source", "field", d.Field, "value", d.Value, "source", d.Source)
	}
	warnUnknown(log, conf)
	process.LimitMemory(log, e.LookupEnv)
	return log, level
}

// Node runs the agent with a NodeConfig until ctx ends or a successor has taken over.
func Node(ctx context.Context, e Env, o Options) error {
	conf, err := config.Load(o.Config, e.Env)
	if err != nil {
		return &ConfigError{err}
	}
	log, level := setUpProcess(e, conf)
	a := &agent{env: e, path: o.Config, log: log, level: level, conf: conf, instance: newInstance(), podDir: o.PodDir, cache: o.Cache}
	a.role = role{
		read: func() (*config.Node, error) { return config.Load(o.Config, e.Env) },
		derive: func(n *config.Node) (plan.Plan, upstream.Upstreams, error) {
			return plan.Read(n, e.ReadFile, a.instance)
		},
		checked: func(string, error) {}, // this role does not export node-cache's metrics
	}
	born, err := handover.Birth(o.PodDir)
	if err != nil {
		// Without a known age, only --take-over lets this agent take over: the active agent may be newer.
		log.Warn("age of this agent's pod unknown; it takes over from another agent only with --take-over", "err", err)
	}
	a.mayTake = o.TakeOver || o.PodDir != "" && err == nil
	pod, _ := e.LookupEnv("POD_NAME") // used only in messages
	a.claim = handover.Claim{Instance: a.instance, PID: os.Getpid(), Pod: pod, Version: e.Version, Since: time.Now(),
		Born: born, TakeOver: o.TakeOver}
	kernel := steer.Kernel()
	log.Info("starting", "version", e.Version, "instance", a.instance, "kernel", kernel)
	if steer.OlderThanTried(kernel) {
		log.Warn("kernel is older than any that neardns is tested with; the agent ends if it lacks what neardns needs", "kernel", kernel,
			"oldest_tested", steer.LeastKernel)
	}
	for _, what := range missingFeatures(iptables.MissingPrograms()) {
		log.Info("iptables programs are missing, so features that need them are unavailable", "what", what)
	}
	return a.runUntilEnd(ctx)
}
