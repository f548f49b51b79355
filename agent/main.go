// Command neardns-agent has a node's DNS cache (role node) and the commands that show, check and undo what it does. README.md next to this
// file describes them.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, env{
		Env:    config.Env{LookupEnv: os.LookupEnv, ReadFile: os.ReadFile, Glob: filepath.Glob},
		Stdout: os.Stdout, Stderr: os.Stderr, Hangups: process.Hangups, Version: version.String(),
	}, os.Args[1:])
	stop()
	os.Exit(code)
}
