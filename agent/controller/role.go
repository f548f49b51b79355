package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// role is a command that asks the API server until it is told to end.
type role struct {
	name  string
	log   *slog.Logger
	flags func(*flag.FlagSet)
	check func() error // what the flags say; nil: anything is right
	run   func(*rest.Config) error
}

// start runs a role and returns the exit code.
func (r role) start(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet(r.name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	r.flags(fs)
	kubeconfig := fs.String("kubeconfig", "", "`FILE` that leads to the API server; by default, the pod's service account does")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitGood
	} else if err != nil {
		return exitConfig
	}
	config, err := r.config(fs, *kubeconfig)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "neardns-controller %s: %v\n", r.name, err)
		return exitConfig
	}
	if err := r.run(config); err != nil {
		r.log.Error("the role ends", "role", r.name, "error", err)
		return exitFailed
	}
	return exitGood
}

func (r role) config(fs *flag.FlagSet, kubeconfig string) (*rest.Config, error) {
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if r.check != nil {
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}
