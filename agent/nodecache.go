package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/internal/dns/corefile"
)

const nodecacheName = "nodecache"

// runNodecache is the role `nodecache`, which runs until ctx ends.
func runNodecache(ctx context.Context, e env, args []string) error {
	opts, err := nodecache.Parse(args, e.stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return badConfig(err)
	case opts.ShowVersion:
		return runVersion(ctx, e, nil)
	case opts.ShowPlugins:
		_, err := fmt.Fprintln(e.stdout, strings.Join(corefile.Directives(), "\n"))
		return err
	}
	return lifecycle.NodeCache(ctx, surroundings(e), opts)
}
