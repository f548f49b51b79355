package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/process"
)

// plan makes the plan from the configuration and the files that it names, logs warnings, and records the files to watch. The plan has no
// back end yet.
func (a *agent) plan(conf *config.Node) (plan.Plan, error) {
	p, up, err := a.role.derive(conf)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		return p, err
	}
	a.files = slices.Clone(up.Files)
	if conf.Corefile != "" {
		a.files = append(a.files, conf.Corefile) // also of a configuration that is refused, because its Corefile may be repaired
	}
	if outside := up.Outside(); a.outside != outside {
		a.log.Info("upstreams for names outside of the cluster", "servers", outside)
		a.outside = outside
	}
	for _, w := range up.Warnings {
		a.log.Warn("some configured upstreams cannot be used", "warning", w)
	}
	for _, note := range up.Notes {
		a.log.Info("upstreams", "note", note)
	}
	return p, nil
}

// load reads the configuration for a reload. take puts it in force together with its plan, which may still be refused, so that the agent
// never runs half of a configuration. If a field that needs a restart has changed, load refuses it.
func (a *agent) load() (p plan.Plan, take func() (changed bool), err error) {
	next, err := a.role.read()
	if err != nil {
		return p, nil, err
	}
	if _, restart := config.Diff(a.config(), next); len(restart) > 0 {
		return p, nil, fmt.Errorf("%s: takes effect only when the agent starts: restart it", strings.Join(restart, ", "))
	}
	if p, err = a.plan(next); err != nil {
		return p, nil, err
	}
	if p, err = p.ForBackend(a.backend); err != nil {
		return p, nil, err
	}
	warnUnknown(a.log, next)
	return p, func() bool { return a.take(next) }, nil
}

// take puts the fields of a configuration in force that no plan has, and reports whether it differs from the one before.
func (a *agent) take(next *config.Node) (changed bool) {
	a.level.Set(next.Log.Level)
	a.answers.Store.SetLimit(mebibytes(next.Cache.MemoryMiB))
	a.clients.Configure(next)
	a.mu.Lock()
	defer a.mu.Unlock()
	differs, _ := config.Diff(a.conf, next)
	a.conf = next
	return len(differs) > 0
}

// warnUnknown warns of unknown keys: misspelled ones, or those of a newer release.
func warnUnknown(log *slog.Logger, n *config.Node) {
	for _, u := range n.Unknown() {
		log.Warn("unknown configuration key; it has no effect", "warning", u)
	}
}

// unknown lists the unknown keys of the configuration in effect.
func (a *agent) unknown() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conf.Unknown()
}

// config is the configuration in effect.
func (a *agent) config() *config.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conf
}

// shown is the text of the configuration in effect.
func (a *agent) shown() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conf.Show()
}

// follow calls set with a new plan at each hangup and when the configuration or a file that it names changes, until ctx ends. It calls
// read with whether the configuration is valid. An invalid one is logged, and the loop keeps its plan. With stale, follow begins with a new
// plan, because the files may have changed since the first one was made.
func (a *agent) follow(ctx context.Context, hangups <-chan struct{}, stale bool, set func(next plan.Plan, take func() (changed bool)),
	read func(ok bool)) {
	reload := func() {
		next, take, err := a.load()
		read(err == nil)
		if err != nil {
			a.log.Error("new configuration refused; the old one keeps serving", "err", err)
			return
		}
		set(next, take)
	}
	process.FollowFiles(ctx, a.log, hangups, stale, a.followed, reload)
}

// followed lists the files whose change triggers a reload.
func (a *agent) followed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	files := slices.Clone(a.files)
	if a.path != "" {
		files = append(files, a.path)
	}
	return files
}
