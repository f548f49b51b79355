// Package lifecycle starts, runs and ends the agent of a node: Node with a NodeConfig, NodeCache with the flags of NodeLocal DNSCache's
// node-cache. Clean removes what either left on the node.
//
// At most one agent is active on a node: the package owns the lock, the handover from a running agent, and the change from one back end's
// rules to another's. Package node decides about leases, and package plan describes the rules.
//
// Failure policy: a start that cannot get what it needs returns an error: a ConfigError if the configuration is at fault, and one that
// IsLocked recognises if another agent has the node. An agent that serves keeps what it has if a reload fails.
package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/neardns/neardns/agent/internal/node/prober"
)

// Env is what a role uses of the process's environment.
type Env struct {
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	ReadFile       func(path string) ([]byte, error)
	// Hangups delivers the signals that request a reload, until ctx ends.
	Hangups func(ctx context.Context) <-chan struct{}
	Version string
}

// ConfigError means that the configuration is at fault. Nothing was changed.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

func (e *ConfigError) Unwrap() error { return e.Err }

// LockedError means that another process has the node's lock.
type LockedError struct{ path, owner string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("another agent (%s) holds %s", e.owner, e.path)
}

// IsLocked reports whether an error means that another agent has the lock of the node or of its prober.
func IsLocked(err error) bool {
	var held *LockedError
	return errors.As(err, &held) || errors.Is(err, prober.ErrHeld)
}

// newInstance names this process to its own prober, so that the prober does not accept another program's answer.
func newInstance() string { return strings.ToLower(rand.Text()[:13]) }
