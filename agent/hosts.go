package main

import (
	"context"
	"flag"

	"github.com/neardns/neardns/agent/internal/lifecycle"
)

// hostRootFlag is the flag of the commands that write the node's hosts file.
func hostRootFlag(fs *flag.FlagSet) *string {
	return fs.String("host-root", "/", "`FOLDER` where the host's root is mounted; of it only etc/hosts is written, and etc must be there; cleanup also takes away what is ours in sys/fs/bpf; empty (cleanup): the hosts file stays as it is")
}

// runHosts is the role `hosts`, which runs until ctx ends.
func runHosts(ctx context.Context, e env, args []string) error {
	fs := flags("hosts")
	path := configFlag(fs)
	hostRoot := hostRootFlag(fs)
	if err := parse(e, fs, args); err != nil {
		return err
	}
	return lifecycle.Hosts(ctx, surroundings(e), *path, *hostRoot)
}
