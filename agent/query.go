package main

import (
	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
)

func queryCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "query NAME", Short: "query a name at the cache, at kube-dns and from a pod; show which server answered"}
	path := configFlag(c)
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("write one name, such as kubernetes.default.svc.cluster.local")
		}
		return nil
	}
	pod := c.Flags().String("pod", "", "`NAMESPACE/NAME` of a pod on this node, from whose network namespace to query too")
	kind := c.Flags().String("type", "A", "record `TYPE` to query")
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		qtype, ok := inspect.QueryType(*kind)
		if !ok {
			return cli.Usagef("--type %s: there is no such record type", *kind)
		}
		in, err := inspector(c.Context(), e, *path)
		if err != nil {
			return err
		}
		l, err := in.Lookup(c.Context(), args[0], qtype, *pod)
		if err != nil {
			return err
		}
		return out.Print(e.Stdout, l, func() string { return inspect.LookupText(l) })
	}
	return c
}
