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
	"time"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
)

// entry returns the conflist entry: ready from a file, or as the agent's binary makes it from the node's configuration. Only the agent's
// binary can read that configuration and detect what it leaves out.
func (in install) entry(ctx context.Context) ([]byte, error) {
	if in.entryFile != "" {
		entry, err := os.ReadFile(in.entryFile)
		if err != nil {
			return nil, fmt.Errorf("%w: read entry: %w: name a file that can be read with --entry", errConfig, err)
		}
		if err := checkEntry(in.entryFile, entry); err != nil {
			return nil, err
		}
		return entry, validate(ctx, in.plugin, in.entryFile)
	}
	if _, err := os.Stat(in.nodeConfig); err != nil {
		return nil, fmt.Errorf("%w: read NodeConfig: %w: name a file that can be read with --nodeconfig", errConfig, err)
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

// show runs the agent's binary to read the node's configuration, and returns its output and its warnings.
func (in install) show(ctx context.Context, format string) (out []byte, warnings string, err error) {
	cmd := exec.CommandContext(ctx, in.agent, "config", "show", "--format", format, "--config", in.nodeConfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 {
			return nil, "", fmt.Errorf("%w: %s", errConfig, strings.TrimSpace(stderr.String()))
		}
		return nil, "", fmt.Errorf("run %s to read %s: %w%s", in.agent, in.nodeConfig, err, programOutput(&stderr))
	}
	return stdout.Bytes(), stderr.String(), nil
}

// writeKubelet copies the settings that are detected from the kubelet's own file, for agent and watch. They do not see that file, because
// its folder has every pod's secrets. If the file is gone, the copy goes, too.
func (in install) writeKubelet(ctx context.Context) error {
	if in.kubeletTo == "" || in.dryRun || in.nodeConfig == "" {
		return nil
	}
	text, _, err := in.show(ctx, "kubelet") // its warnings are the entry's
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

// validate lets the plugin check a hand-written entry, because at run time the plugin ignores keys that it does not know.
func validate(ctx context.Context, plugin, file string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin, "validate", file)
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != cli.Config {
		return nil // valid, or the plugin cannot be run, which placeBinary finds before it installs the plugin
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
	return fmt.Errorf("%w: %s", errConfig, strings.Join(faults, "; "))
}

// checkEntry appends the entry to a minimal list, and returns an error if it does not fit.
func checkEntry(from string, entry []byte) error {
	if _, err := conflist.Append([]byte(`{"name":"try","plugins":[{"type":"main"}]}`), entry); err != nil {
		return fmt.Errorf("%w: %s: %w", errConfig, from, err)
	}
	return nil
}

// await returns nil once there is a network that can be edited, or the reason why there is none when the wait is over. A file that does
// not parse may be one that its owner is writing.
func (in install) await(ctx context.Context, entry []byte) error {
	ctx, cancel := context.WithTimeout(ctx, max(in.wait, 0))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
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
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (c change) checkVersions(versions []string) error {
	if err := c.Speaks(versions); err != nil {
		return fmt.Errorf("%s: %w", c.from, err)
	}
	return nil
}
