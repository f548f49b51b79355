package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// role is a command that works with the API server until it is stopped.
type role struct {
	name  string
	log   *slog.Logger
	flags func(*flag.FlagSet)
	check func() error // validates the flags; nil: every value is valid
	run   func(*rest.Config) error
}

// start runs a role and returns the exit code.
func (r role) start(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("neardns-controller "+r.name, flag.ContinueOnError)
	r.flags(fs)
	kubeconfig := fs.String("kubeconfig", "", "`FILE` that leads to the API server; by default, the pod's service account does")
	if code, ended := parse(fs, args, stdout, stderr); ended {
		return code
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
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: %w: run it as install/ does, in a pod with a service account, or name a file with --kubeconfig", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	return config, nil
}

// parse parses flags. ended means that the program must exit with the code, for example after it printed the help.
func parse(fs *flag.FlagSet, args []string, stdout, stderr io.Writer) (code int, ended bool) {
	var said bytes.Buffer
	fs.SetOutput(&said)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, _ = said.WriteTo(stdout)
		return exitGood, true
	case err != nil:
		_, _ = said.WriteTo(stderr)
		return exitConfig, true
	}
	return 0, false
}
