package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Clean takes everything away, in the order in which nothing ever leads into nothing: the conflist's entry, pods' local nameservers, pod tables,
// then the switch, then the link and the files. Where a pod cannot be entered, or names a local address by itself, the switch stays, since
// that pod still sends to it. p is the plan of the node, of
// which it takes folders and link. cniConf is the folder of the runtime's networks, hostRoot where the host's root is mounted; empty: the
// hosts file is another's, and stays. An agent that runs, in either role, is in its way (IsHeld); the role hosts only in that of its lines.
func Clean(ctx context.Context, e Env, p plan.Plan, cniConf, hostRoot string) error {
	release, err := hold(p.Folders.State)
	if err != nil {
		return err
	}
	defer release()
	lock, err := lockNetNS()
	var held *HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: stop it first", err)
	} else if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // at exit
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(e.Stdout, format+"\n", args...) }

	if err := unchain(ctx, e, cniConf); err != nil {
		return err
	}
	// Nothing is steered from here on, whatever the conflist still says.
	if err := nodestate.RemoveProof(p.Folders.Persist); err != nil {
		return err
	}
	k, err := inspect.Installed(p.Folders.State)
	if err != nil {
		return err
	}
	if err := sweep(bpfFolder(p.Folders.State, hostRoot)); err != nil {
		return fmt.Errorf("take the kernel's part of hits away: %w", err)
	}
	registry := pods.Open(p.Folders.State, k, slog.New(slog.DiscardHandler))
	living := len(registry.List())
	if err := registry.RestoreNameservers(hostRoot); err != nil {
		return fmt.Errorf("%w: the switch stays for them; end these pods and run cleanup again", err)
	}
	if err := errors.Join(registry.RemoveTables(ctx)...); err != nil {
		return fmt.Errorf("%w: the switch stays for them; end these pods and run cleanup again", err)
	}
	// Nobody may put the host's rules back from here on: by this file the installer's watch would.
	if err := nodestate.RemoveHostRules(p.Folders.State); err != nil {
		return err
	}
	say("pod tables removed: %d pods ask kube-dns directly from now on; no rule of ours is left in them, only the runtime's note to call the "+
		"plugin when they end", living)
	for _, k := range append(k.Others(), k) { // an agent that was killed while it changed from one to the other left both
		if err := removeRules(k); err != nil {
			return err
		}
	}
	if err := iptables.RemoveAccepts(); err != nil {
		return err
	}
	say("host table removed")
	if err := prober.Remove(); err != nil { // of an agent in node-cache's place that was killed
		return err
	}
	_, absent := net.InterfaceByName(p.Link.Name)
	if err := link.Remove(link.Config{Name: p.Link.Name}); err != nil {
		return err
	}
	if absent == nil {
		say("link %s removed", p.Link.Name)
	} else { // or --link has a slip
		say("there is no link %s", p.Link.Name)
	}
	if err := errors.Join(
		os.RemoveAll(filepath.Dir(podfile.Path(p.Folders.State, "x", "x"))),
		removeFile(filepath.Join(p.Folders.State, nodestate.AgentSocketName)),
		removeFile(filepath.Join(p.Folders.State, nodestate.HandoverName)),
		nodestate.RemoveWatch(p.Folders.State),
		nodestate.RemoveKubelet(p.Folders.State),
		removeFile(podfile.LockPath(p.Folders.State)),
		removeFile(filepath.Join(p.Folders.State, nodestate.PluginLogName)),
		removeFile(filepath.Join(p.Folders.State, nodestate.PluginLogName+".1")),
		removeFile(filepath.Join(p.Folders.Persist, nodestate.CacheSnapshotName)),
		removeFile(filepath.Join(p.Folders.State, nodestate.AgentLockName)),
		nodestate.Sweep(p.Folders.State, 0), // of writers that were killed
		nodestate.Sweep(p.Folders.Persist, 0),
	); err != nil {
		return err
	}
	// Last, since nothing of the cache depends on it: a hosts file that cannot be written, or whose role runs, holds nothing else up.
	hostsErr := error(nil)
	if hostRoot != "" {
		hostsErr = removeHosts(ctx, p.Folders.State, hostRoot, say)
	}
	// The folders themselves stay where they hold something else, or are mounted.
	for _, dir := range []string{p.Folders.State, p.Folders.Persist} {
		_ = os.Remove(dir)
	}
	return hostsErr
}

// bpfFolder is where the kernel's part of hits stands, for a cleanup that sees the state folder below the host's root. Where it is not told of
// that root, it is what is above the usual state folder.
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

// removeRules takes the host's rules of one back end away. A kernel that cannot have them has none.
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

// unchain takes the plugin's entry out of the conflists through the installer, which knows how and lies beside the agent.
func unchain(ctx context.Context, e Env, folder string) error {
	named, err := namesPlugin(folder)
	if err != nil || !named {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the installer: %w", err)
	}
	installer := filepath.Join(filepath.Dir(self), "neardns-install")
	if _, err := os.Stat(installer); err != nil {
		return fmt.Errorf("a network in %s still has the entry of neardns and there is no %s to take it out: run `neardns-install uninstall` first, "+
			"or take it out by hand", folder, installer)
	}
	cmd := exec.CommandContext(ctx, installer, "uninstall", "--cni-conf="+folder)
	cmd.Stdout, cmd.Stderr = e.Stdout, e.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("take the entry out of the networks in %s: %w", folder, err)
	}
	return nil
}

// namesPlugin reports whether a network in the folder has our entry. An absent folder has no networks.
func namesPlugin(folder string) (bool, error) {
	files, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("list networks: %w", err)
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".conflist" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return false, fmt.Errorf("read network: %w", err)
		}
		if n, err := conflist.Read(text); err == nil && n.Position() > 0 {
			return true, nil
		}
	}
	return false, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// hold takes the lock for a command that must not meet an agent.
func hold(stateDir string) (release func(), err error) {
	f, err := lockNode(stateDir, fmt.Sprintf("process %d", os.Getpid()))
	var held *HeldError
	if errors.As(err, &held) {
		return nil, fmt.Errorf("%w: stop it first", err)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
