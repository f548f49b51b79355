package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/process"
)

// plan makes a plan from the configuration and the files that it names. It records which files to watch and, if the plan succeeds, logs
// warnings. The caller sets the plan's back end.
func (a *agent) plan(conf *config.Node) (plan.Plan, error) {
	p, up, err := a.role.derive(conf)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil { // watch these files too, because a change may remove the fault
		a.files = append(a.files, slices.DeleteFunc(up.Files, func(f string) bool { return slices.Contains(a.files, f) })...)
		return p, err
	}
	a.files = slices.Clone(up.Files)
	if conf.Corefile != "" {
		a.files = append(a.files, conf.Corefile) // watched even if the server refuses the Corefile later: a change may remove the fault
	}
	if outside := up.Outside(); a.outside != outside {
		a.log.Info("upstreams chosen for names outside of the cluster", "servers", outside)
		a.outside = outside
	}
	for _, w := range up.Warnings {
		a.log.Warn("no usable upstream for names outside of the cluster; the cluster's servers get these queries", "reason", w)
	}
	for _, note := range up.Notes {
		a.log.Info("an upstream entry is skipped or replaced", "note", note)
	}
	return p, nil
}

// load reads the configuration for a reload and makes its plan. take applies the rest of the configuration; call it after the plan is
// served, so that a refused plan leaves the old configuration in effect. load returns an error if a field has changed that needs a restart.
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

// take applies the fields of a configuration that the plan does not have. It reports whether the configuration differs from the previous
// one.
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

// warnUnknown logs the unknown keys of a configuration. Such a key is misspelled, or belongs to a newer release.
func warnUnknown(log *slog.Logger, n *config.Node) {
	for _, u := range n.Unknown() {
		log.Warn("unknown configuration key; it has no effect", "warning", u)
	}
}

// config returns the configuration in effect.
func (a *agent) config() *config.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conf
}

// follow reloads the configuration when a signal arrives on hangups, and when the configuration file or a file that it names changes,
// until ctx ends. For a valid configuration it calls set with the new plan; for an invalid one it logs the error, and the old plan stays.
// Before that, follow calls read with whether the new configuration is valid. stale means that files may have changed since the first plan
// was made, so follow begins with a reload.
func (a *agent) follow(ctx context.Context, hangups <-chan os.Signal, stale bool, set func(next plan.Plan, take func() (changed bool)),
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
