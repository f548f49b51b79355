package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
)

func podsCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "pods", Short: "list this node's pods: DNS settings, which server answers them, query counts"}
	path := configFlag(c)
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		conf, err := loadConfig(e, *path)
		if err != nil {
			return err
		}
		views, noAgent := (&inspect.Inspector{Conf: conf}).Pods(c.Context())
		if err := out.Print(e.Stdout, views, func() string { return inspect.PodsText(views) }); err != nil {
			return err
		}
		if noAgent != nil {
			return &cli.ExitError{Code: cli.Degraded, Err: fmt.Errorf("%w; this is from the pods' files", noAgent)}
		}
		return nil
	}
	return c
}
