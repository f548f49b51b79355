package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/pkg/tick"
)

// watchEvery is the period of `status --watch`. A reading costs the node a few reads of the kernel's rules.
const watchEvery = 2 * time.Second

// inspector inspects the node by the configuration in effect.
func inspector(ctx context.Context, e env, path string) (*inspect.Inspector, error) {
	conf, fault, err := inspect.InEffect(ctx, path, config.Env{LookupEnv: e.lookupEnv, ReadFile: e.readFile})
	if err != nil {
		return nil, badConfig(err)
	}
	return &inspect.Inspector{Conf: conf, Fault: fault, ReadFile: e.readFile}, nil
}

func printJSON(e env, v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func runStatus(ctx context.Context, e env, args []string) error {
	fs := flags("status")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	watch := fs.Bool("watch", false, "refresh every 2 s: which server answers, queries per second, top pods")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	if *watch && *asJSON {
		return badConfig(errors.New("--watch and --json: use one of them"))
	}
	if *watch {
		return watchStatus(ctx, e, *path)
	}
	in, err := inspector(ctx, e, *path)
	if err != nil {
		return err
	}
	s, err := in.Status(ctx)
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

// watchStatus shows the node again and again until ctx ends.
func watchStatus(ctx context.Context, e env, path string) error {
	var before *inspect.Reading
	for {
		in, err := inspector(ctx, e, path) // the configuration may change meanwhile
		if err != nil {
			return err
		}
		now, err := in.Read(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user ended it
		}
		if err != nil {
			return err
		}
		rows, cols := terminal(e.stdout)
		if _, err := io.WriteString(e.stdout, inspect.Frame(now.Text(before), rows, cols)); err != nil {
			return err
		}
		before = now
		if !tick.Pause(ctx, watchEvery) {
			return nil
		}
	}
}

// terminal is the size of the terminal; 0, 0 if out is none.
func terminal(out io.Writer) (rows, cols int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	if size.Row == 0 || size.Col == 0 {
		return 24, 80 // one that does not know its size, such as a serial line
	}
	return int(size.Row), int(size.Col)
}
