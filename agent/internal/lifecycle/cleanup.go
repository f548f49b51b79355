package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Clean removes what the plugin and the agents made on the node. Its steps are ordered so that no packet is sent to something already
// removed. If a steered pod's netns cannot be entered, or a pod still has a local address as nameserver, Clean fails and the switch stays,
// because that pod may still send queries to it. linkName is the link to remove. cniConf is the folder of CNI configurations. hostRoot is
// where the host's root is mounted; if it is empty, the hosts file is not changed. While an agent runs, Clean fails and removes nothing
// (IsLocked). While the role `hosts` runs, Clean removes all but that role's lines, and then fails (IsLocked).
func Clean(ctx context.Context, e Env, folders plan.Folders, linkName, cniConf, hostRoot string) error {
	for _, l := range []plan.Lock{{Folder: folders.State}, {}} { // the second one is an agent's in node-cache mode
		lock, err := takeLock(l, fmt.Sprintf("process %d", os.Getpid()))
		if errors.As(err, new(*LockedError)) {
			return fmt.Errorf("%w: stop it first", err)
		} else if err != nil {
			return err
		}
		defer lock.Close() //nolint:errcheck // at exit
	}
	c := cleanup{env: e, folders: folders, linkName: linkName, cniConf: cniConf, hostRoot: hostRoot}
	for _, s := range c.steps() {
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("remove %s: %w", s.what, err)
		}
	}
	return nil
}

// cleanup is the state of a running Clean.
type cleanup struct {
	env                         Env
	folders                     plan.Folders
	linkName, cniConf, hostRoot string
	backend                     rules.Kind
	registry                    *pods.Pods
}

// step is one step of Clean. Clean returns the first error, without doing the later steps.
type step struct {
	what string
	do   func(context.Context) error
}

func (c *cleanup) steps() []step {
	return []step{
		{"the entry in CNI configurations", func(ctx context.Context) error { return unchain(ctx, c.env, c.cniConf) }},
		// Without this record the plugin steers no pod, even if a CNI configuration still has its entry (except with steer: always).
		{"the record of the fallback check", func(context.Context) error { return nodestate.ProofFile(c.folders.Persist).Remove() }},
		{"kernel hits", func(context.Context) error { return offload.Sweep(bpfFolder(c.folders.State, c.hostRoot)) }},
		{"pods' local nameservers", c.nameservers},
		{"pods' tables", c.tables},
		// Removed before the rules, because the installer's watch restores missing rules that this file describes.
		{"the record of the host's rules", func(context.Context) error { return nodestate.HostRulesFile(c.folders.State).Remove() }},
		{"the host's rules", c.hostRules},
		{"pods' conntrack entries", func(context.Context) error { c.registry.ForgetEntries(); return nil }},
		{"the prober's link", func(context.Context) error { return prober.RemoveLeftovers() }}, // left by a killed prober without a netns
		{"the link", c.link},
		{"files", c.files},
		// Last, because pods' DNS does not depend on it: if the hosts file cannot be written, or the role `hosts` runs, all else is
		// already removed.
		{"lines in the hosts file", c.hosts},
	}
}

func (c *cleanup) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c.env.Stdout, format+"\n", args...)
}

const keepsSwitch = "the host's packet rules stay for these pods; end the pods and run cleanup again"

func (c *cleanup) nameservers(context.Context) (err error) {
	if c.backend, err = inspect.Installed(c.folders.State); err != nil {
		return err
	}
	c.registry = pods.Open(c.folders.State, c.backend, slog.New(slog.DiscardHandler))
	if err := c.registry.RestoreNameservers(c.hostRoot); err != nil {
		return fmt.Errorf("%w: %s", err, keepsSwitch)
	}
	return nil
}

func (c *cleanup) tables(ctx context.Context) error {
	living := len(c.registry.List())
	if err := errors.Join(c.registry.RemoveTables(ctx)...); err != nil {
		return fmt.Errorf("%w: %s", err, keepsSwitch)
	}
	c.say("pod tables removed (%d pod files): pods query kube-dns directly now; the runtime still calls the plugin when they end", living)
	return nil
}

func (c *cleanup) hostRules(context.Context) error {
	for _, k := range []rules.Kind{c.backend.Other(), c.backend} { // a killed agent may have left the rules of two back ends
		if err := removeRules(k); err != nil {
			return err
		}
	}
	if err := iptables.RemoveAccepts(); err != nil {
		return err
	}
	c.say("host's packet rules removed")
	return nil
}

func (c *cleanup) link(context.Context) error {
	name := c.linkName
	_, absent := net.InterfaceByName(name)
	if err := link.Remove(link.Config{Name: name}); err != nil {
		return err
	}
	if absent == nil {
		c.say("link %s removed", name)
	} else { // no error, but the name is printed, because --link may have a typo
		c.say("there is no link %s", name)
	}
	return nil
}

func (c *cleanup) files(context.Context) error {
	state, persist := c.folders.State, c.folders.Persist
	errs := []error{nodestate.WatchFile(state).Remove(), nodestate.KubeletFile(state).Remove()}
	for _, path := range []string{filepath.Dir(podfile.Path(state, "x", "x")), filepath.Join(state, nodestate.AgentSocketName),
		filepath.Join(state, nodestate.HandoverName), podfile.LockPath(state), filepath.Join(state, nodestate.PluginLogName),
		filepath.Join(state, nodestate.PluginLogName+".1"), filepath.Join(persist, nodestate.CacheSnapshotName),
		filepath.Join(state, nodestate.AgentLockName)} {
		errs = append(errs, os.RemoveAll(path)) // no error if it is absent
	}
	return errors.Join(append(errs, nodestate.Sweep(state, 0), nodestate.Sweep(persist, 0))...) // files of killed processes
}

func (c *cleanup) hosts(ctx context.Context) (err error) {
	if c.hostRoot != "" {
		err = removeHosts(ctx, c.folders.State, c.hostRoot, c.say)
	}
	// Remove fails, and the folder stays, if it has other files or is a mount point.
	for _, dir := range []string{c.folders.State, c.folders.Persist} {
		_ = os.Remove(dir)
	}
	return err
}

// bpfFolder returns the folder of kernel hits in the BPF file system, for a cleanup that sees the host's file system below hostRoot. If
// hostRoot is empty, the root is the part of stateDir before the default state folder, or this process's root if stateDir does not end with
// that folder.
func bpfFolder(stateDir, hostRoot string) string {
	if above, usual := strings.CutSuffix(stateDir, nodestate.DefaultStateDir); hostRoot == "" && usual {
		hostRoot = cmp.Or(above, "/")
	}
	below, err := filepath.Rel(hostRoot, stateDir)
	if hostRoot == "" || err != nil || !filepath.IsLocal(below) {
		return nodestate.BPFFolder(stateDir)
	}
	return filepath.Join(hostRoot, nodestate.BPFFolder("/"+below))
}

// removeRules removes the host's rules of one back end. It returns nil if the kernel does not support the back end, because there are no
// rules then.
func removeRules(k rules.Kind) error {
	rules, err := k.OpenHost(-1)
	if err == nil {
		defer rules.Close() //nolint:errcheck // at exit
		err = rules.Remove()
	}
	if errors.Is(err, steer.ErrNotSupported) {
		return nil
	}
	return err
}

// unchain runs the installer, whose binary is next to the agent's, to remove the plugin's entry from the CNI configurations.
func unchain(ctx context.Context, e Env, folder string) error {
	networks, err := inspect.Networks(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the networks: %w", err)
	} else if !slices.ContainsFunc(networks, func(n inspect.Network) bool { return n.Entry }) {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the installer: %w", err)
	}
	installer := filepath.Join(filepath.Dir(self), "neardns-install")
	if _, err := os.Stat(installer); err != nil {
		return fmt.Errorf("a network in %s still has the entry of neardns, and there is no %s to remove it: "+
			"run `neardns-install uninstall` first, "+
			"or take it out by hand", folder, installer)
	}
	cmd := exec.CommandContext(ctx, installer, "uninstall", "--cni-conf="+folder)
	cmd.Stdout, cmd.Stderr = e.Stdout, e.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("take the entry out of the networks in %s: %w", folder, err)
	}
	return nil
}
