package main

import (
	"context"
	"fmt"

	"github.com/neardns/neardns/agent/internal/lifecycle"
)

// runEdge is the role `edge`, which runs until ctx ends.
func runEdge(ctx context.Context, e env, args []string) error {
	fs := flags("edge")
	path := fs.String("config", "/etc/neardns/edgeconfig.yaml", "`FILE` with an EdgeConfig")
	check := fs.Bool("check", false, "check the configuration and end")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	if *check {
		if err := lifecycle.CheckEdge(surroundings(e), *path); err != nil {
			return err
		}
		_, err := fmt.Fprintln(e.stdout, *path+": good")
		return err
	}
	return lifecycle.Edge(ctx, surroundings(e), *path)
}
