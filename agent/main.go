// Command neardns-agent is the part of neardns that runs on a node: the cache itself (role node) and the commands that
// show, check and undo what it does. README.md next to this file lists them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, realEnv())
	stop()
	os.Exit(code)
}
