package main

import (
	"context"
	"io"
	"os"

	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/pkg/version"
)

// env is everything ambient that a command uses, so that tests can replace all of it.
type env struct {
	args      []string
	stdout    io.Writer
	stderr    io.Writer
	lookupEnv func(string) (string, bool)
	readFile  func(string) ([]byte, error)
	// hangups delivers SIGHUP, and SIGUSR1, by which CoreDNS reloads, until ctx ends.
	hangups func(ctx context.Context) <-chan struct{}
	version string
}

func realEnv() env {
	return env{
		args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv, readFile: os.ReadFile,
		hangups: process.Hangups, version: version.String(),
	}
}
