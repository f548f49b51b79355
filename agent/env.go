package main

import (
	"context"
	"io"
	"os"

	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/pkg/version"
)

// env has those parts of the process that tests replace.
type env struct {
	args      []string
	stdout    io.Writer
	stderr    io.Writer
	lookupEnv func(string) (string, bool)
	readFile  func(string) ([]byte, error)
	// hangups returns a channel that delivers SIGHUP, and SIGUSR1 (with which CoreDNS reloads), until ctx ends.
	hangups func(ctx context.Context) <-chan struct{}
	version string
}

func realEnv() env {
	return env{
		args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv, readFile: os.ReadFile,
		hangups: process.Hangups, version: version.String(),
	}
}
