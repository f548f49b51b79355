package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
)

// looker looks at the node by the configuration in effect.
func looker(ctx context.Context, e env, path string) (*inspect.Looker, error) {
	conf, fault, err := inspect.InEffect(ctx, path, config.Env{LookupEnv: e.lookupEnv, ReadFile: e.readFile})
	if err != nil {
		return nil, badConfig(err)
	}
	return &inspect.Looker{Conf: conf, Fault: fault, ReadFile: e.readFile}, nil
}

func printJSON(e env, v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func runStatus(ctx context.Context, e env, args []string) error {
	fs := flags(e, "status")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(fs, args); err != nil {
		return err
	}
	look, err := looker(ctx, e, *path)
	if err != nil {
		return err
	}
	s, err := look.Status(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		err = printJSON(e, s)
	} else {
		_, err = io.WriteString(e.stdout, s.Text())
	}
	if err != nil {
		return err
	}
	if !s.Good() {
		return &exitError{code: exitDegraded}
	}
	return nil
}
