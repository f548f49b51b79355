// Package lifecycle makes a process the agent of its node: it opens the parts, takes the node, serves by the plan of the configuration, and
// ends. Node does so by a NodeConfig, NodeCache by the flags of NodeLocal DNSCache's node-cache, and Clean takes away what either left.
//
// It owns who has the node: the lock, the take-over from a running agent, and the change from one back end's rules to another's. It
// decides nothing about leases, which the loop does (package node), and describes no rules, which the plan does.
//
// Failure policy: a start that cannot get what it needs ends with an error, ConfigError where the configuration is at fault, and one
// that IsHeld tells where another agent has the node. An agent that serves goes on with what it has.
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

// Env is everything ambient that a role uses.
type Env struct {
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	ReadFile       func(path string) ([]byte, error)
	// Hangups delivers the signals that ask for a reload, until ctx ends.
	Hangups func(ctx context.Context) <-chan struct{}
	Version string
}

// ConfigError says that the configuration is at fault. Nothing was changed.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

func (e *ConfigError) Unwrap() error { return e.Err }

// HeldError says that another process has the node's lock.
type HeldError struct{ path, holder string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("another agent (%s) holds %s", e.holder, e.path)
}

// IsHeld tells whether an error says that another agent has the node, or its prober's place.
func IsHeld(err error) bool {
	var held *HeldError
	return errors.As(err, &held) || errors.Is(err, prober.ErrHeld)
}

// newInstance names this process to its own prober, so that nobody else's answer is taken for it.
func newInstance() string { return strings.ToLower(rand.Text()[:13]) }
