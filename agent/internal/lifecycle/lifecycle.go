// Package lifecycle starts, runs and ends the agent of a node: Node with a NodeConfig, NodeCache with the flags of NodeLocal DNSCache's
// node-cache. Hosts runs the role `hosts`, which keeps Service names in the node's hosts file. Clean removes what they left on the node.
//
// At most one agent is active on a node. The package owns the node's lock, the handover from a running agent, and the move of the
// host's rules from one back end to another. Package node decides about leases, and package plan describes the rules.
//
// Failure policy: a start that fails returns an error: a ConfigError if the configuration is at fault, and an error that IsLocked
// recognises if another agent is active. A running agent keeps its configuration if a reload fails.
package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/node/prober"
)

// Env is the part of the process's environment that a role uses; tests replace it.
type Env struct {
	config.Env
	Stdout, Stderr io.Writer
	// Hangups returns a channel that delivers the signals that request a reload, until ctx ends.
	Hangups func(ctx context.Context) <-chan os.Signal
	Version string
}

// ConfigError is a fault of the configuration. The node's link and packet rules are unchanged.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

func (e *ConfigError) Unwrap() error { return e.Err }

// LockedError means that another process holds the lock of the node or of its netns or, in Clean, that the role `hosts` runs.
type LockedError struct{ path, owner string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("another agent (%s) holds %s", e.owner, e.path)
}

// IsLocked reports whether an error is a LockedError, or means that another agent has the prober's lock.
func IsLocked(err error) bool {
	return errors.As(err, new(*LockedError)) || errors.Is(err, prober.ErrHeld)
}

// newInstance returns a random name for this process. Answers to the agent's probes carry it, so that the agent does not count another
// program's answer as its own.
func newInstance() string { return strings.ToLower(rand.Text()[:13]) }
