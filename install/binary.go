package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/conflist"
)

// probeTimeout limits how long the plugin may take to answer the CNI command VERSION or to check an entry. It needs milliseconds.
const probeTimeout = 10 * time.Second

// binaryPath returns the path of the installed plugin. Its file name must be the "type" of the conflist entry, because the runtime finds
// the binary by that.
func binaryPath(folder string) string { return filepath.Join(folder, conflist.Type) }

// placeBinary copies the plugin from source into folder if it differs (not with dryRun), and returns whether it differs. It writes the copy
// under a temporary name, runs it with VERSION, passes the CNI versions that it supports to suits, and renames it only if all succeed. So a
// pod start never runs a half-written plugin or one built for another machine.
func placeBinary(ctx context.Context, source, folder string, dryRun bool, suits func(versions []string) error) (changed bool, err error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return false, fmt.Errorf("read plugin: %w (name it with --plugin)", err)
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return false, fmt.Errorf("no folder %s for CNI plugins: name the runtime's own with --cni-bin", folder)
	}
	target := binaryPath(folder)
	same, err := isExecutableCopy(target, content)
	if err != nil {
		return false, err
	}
	trial := target
	switch {
	case same:
	case dryRun:
		trial = source
	default:
		if trial, err = writeTemp(folder, content, 0o755, nil); err != nil {
			return false, fmt.Errorf("write plugin: %w", err)
		}
		defer func() { _ = os.Remove(trial) }() // on success, it is renamed already
	}
	versions, err := queryVersions(ctx, trial)
	if err != nil {
		return false, err
	}
	if err := suits(versions); err != nil || same || dryRun {
		return !same, err
	}
	if err := rename(trial, target); err != nil {
		return false, fmt.Errorf("put plugin in place: %w", err)
	}
	return true, nil
}

func isExecutableCopy(file string, content []byte) (bool, error) {
	info, err := os.Lstat(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stat plugin: %w", err)
	}
	// Replace a symbolic link or a file with another mode, even if its content is right.
	if !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 || info.Size() != int64(len(content)) {
		if info.IsDir() {
			return false, fmt.Errorf("%s is a folder: remove it", file)
		}
		return false, nil
	}
	have, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("read plugin: %w", err)
	}
	return bytes.Equal(have, content), nil
}

// works reports whether file is a plugin of any release that runs and answers VERSION.
func works(ctx context.Context, file string) bool {
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	_, err = queryVersions(ctx, file)
	return err == nil
}

// queryVersions runs the plugin's VERSION command as a runtime does and returns the CNI versions that it supports. It returns an error if
// the plugin prints anything but one JSON object, because that would break every ADD.
func queryVersions(ctx context.Context, plugin string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, plugin)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run %s for its version: %w%s (is it built for this machine, and the folder mounted without noexec?)", plugin, err,
			programOutput(&stdout, &stderr))
	}
	var answer struct{ SupportedVersions []string }
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		return nil, fmt.Errorf("%s does not answer VERSION as a CNI plugin does: %w%s", plugin, err, programOutput(&stdout, &stderr))
	}
	if len(answer.SupportedVersions) == 0 {
		return nil, fmt.Errorf("%s supports no CNI version%s", plugin, programOutput(&stdout, &stderr))
	}
	return answer.SupportedVersions, nil
}

func programOutput(outputs ...*bytes.Buffer) string {
	var all []string
	for _, o := range outputs {
		if s := strings.TrimSpace(o.String()); s != "" {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "; it printed: " + strings.Join(all, " / ")
}
