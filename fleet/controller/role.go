package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/neardns/neardns/internal/cli"
)

// role is a command of neardns-controller that uses the API server and runs until it is stopped.
type role struct {
	name, about string
	log         *slog.Logger
	flags       func(*pflag.FlagSet)
	check       func() error // validates the flags; nil: there is nothing to validate
	run         func(*cobra.Command, *rest.Config) error
}

func (r role) command() *cobra.Command {
	c := &cobra.Command{Use: r.name, Short: r.about}
	r.flags(c.Flags())
	kubeconfig := c.Flags().String("kubeconfig", "", "kubeconfig `FILE` for the API server; default: the pod's service account")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if r.check != nil {
			if err := r.check(); err != nil {
				return cli.Usage(err)
			}
		}
		config, err := connection(*kubeconfig)
		if err != nil {
			return cli.Usage(err)
		}
		if err := r.run(c, config); err != nil {
			r.log.Error("a role of the controller failed; the process ends", "role", r.name, "error", err)
			return &cli.ExitError{Code: cli.Failed}
		}
		return nil
	}
	return c
}

// connection returns the configuration of the API server's client: from the kubeconfig file or, if kubeconfig is "", from the pod's service
// account.
func connection(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: %w: run it as fleet/install does, in a pod with a service account, "+
				"or name a file with --kubeconfig", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	return config, nil
}
