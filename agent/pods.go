package main

import (
	"context"
	"fmt"
	"io"

	"github.com/neardns/neardns/agent/internal/inspect"
)

func runPods(ctx context.Context, e env, args []string) error {
	fs := flags("pods")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	conf, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	views, noAgent := (&inspect.Inspector{Conf: conf}).Pods(ctx)
	if *asJSON {
		err = printJSON(e, views)
	} else {
		_, err = io.WriteString(e.stdout, inspect.PodsText(views))
	}
	if err != nil {
		return err
	}
	if noAgent != nil {
		return &exitError{code: exitDegraded, err: fmt.Errorf("%w; this is from the pods' files", noAgent)}
	}
	return nil
}
