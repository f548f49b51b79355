package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/tick"
)

// entry returns the plugin's conflist entry: the content of --entry, or what `neardns-agent config show` makes from NodeConfig. The
// installer runs the agent for that because only the agent can parse NodeConfig and detect the settings that it omits.
func (in install) entry(ctx context.Context) ([]byte, error) {
	if in.entryFile != "" {
		entry, err := os.ReadFile(in.entryFile)
		if err != nil {
			return nil, cli.Usagef("read entry: %w: name a file that can be read with --entry", err)
		}
		if err := checkEntry(in.entryFile, entry); err != nil {
			return nil, err
		}
		return entry, validate(ctx, in.plugin, in.entryFile)
	}
	if _, err := os.Stat(in.nodeConfig); err != nil {
		return nil, cli.Usagef("read NodeConfig: %w: name a file that can be read with --nodeconfig", err)
	}
	entry, warnings, err := in.show(ctx, "conflist-entry")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(warnings) {
		in.say("%s", strings.TrimSpace(line))
	}
	return entry, checkEntry(in.nodeConfig, entry)
}

// show runs `neardns-agent config show` on the NodeConfig, and returns its output and its warnings.
func (in install) show(ctx context.Context, format string) (out []byte, warnings string, err error) {
	cmd := exec.CommandContext(ctx, in.agent, "config", "show", "--format", format, "--config", in.nodeConfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 {
			return nil, "", cli.Usage(errors.New(strings.TrimSpace(stderr.String())))
		}
		return nil, "", fmt.Errorf("run %s to read %s: %w%s", in.agent, in.nodeConfig, err, programOutput(&stderr))
	}
	return stdout.Bytes(), stderr.String(), nil
}

// writeKubelet writes the settings that come from the kubelet's configuration to a file for the agent and the watch. They cannot read the
// kubelet's own folder, because it also holds every pod's secrets. If the kubelet's configuration is gone, writeKubelet removes the copy.
func (in install) writeKubelet(ctx context.Context) error {
	if in.kubeletTo == "" || in.dryRun || in.nodeConfig == "" {
		return nil
	}
	text, _, err := in.show(ctx, "kubelet") // the method entry has printed the same warnings
	if err != nil {
		return err
	}
	if len(text) == 0 {
		return nodestate.KubeletFile(in.kubeletTo).Remove()
	}
	var k nodestate.Kubelet
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("read the kubelet's settings from %s: %w", in.agent, err)
	}
	return nodestate.KubeletFile(in.kubeletTo).Write(k)
}

// validate runs the plugin's own check on a hand-written entry (--entry), because the plugin ignores unknown keys when a pod starts.
func validate(ctx context.Context, plugin, file string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin, "validate", file)
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != cli.Config {
		return nil // the entry is valid, or the plugin does not run: placeBinary reports that if it needs the plugin
	}
	var faults []string
	for line := range strings.Lines(stderr.String()) {
		if !strings.Contains(line, ": warning: ") {
			faults = append(faults, strings.TrimSpace(line))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return cli.Usage(errors.New(strings.Join(faults, "; ")))
}

// checkEntry returns an error if the entry cannot be appended to a valid conflist. It tries that with a minimal one.
func checkEntry(from string, entry []byte) error {
	if _, err := conflist.Append([]byte(`{"name":"try","plugins":[{"type":"main"}]}`), entry); err != nil {
		return cli.Usagef("%s: %w", from, err)
	}
	return nil
}

// await returns nil once there is a network configuration that the entry can be added to. If there is none when --wait is over, it
// returns the reason. A file that does not parse is waited for too: its owner may be writing it.
func (in install) await(ctx context.Context, entry []byte) error {
	ctx, cancel := context.WithTimeout(ctx, max(in.wait, 0))
	defer cancel()
	for first := true; ; first = false {
		c, err := in.plan(entry)
		if err == nil {
			err = c.checkVersions(conflist.Versions())
		}
		if err == nil {
			return nil
		}
		if first && in.wait > 0 {
			in.say("waiting up to %s: %v", in.wait, err)
		}
		if !tick.Pause(ctx, pollEvery) {
			return err
		}
	}
}

func (c change) checkVersions(versions []string) error {
	if err := c.CheckVersion(versions); err != nil {
		return fmt.Errorf("%s: %w", c.from, err)
	}
	return nil
}
