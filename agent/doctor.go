package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/neardns/neardns/agent/internal/inspect/bundle"
	"github.com/neardns/neardns/pkg/atomicfile"
)

// runDoctor reports what is wrong on this node and what to do. It only reads and sends queries, also if the agent is dead.
func runDoctor(ctx context.Context, e env, args []string) error {
	fs := flags("doctor")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	cniConf := fs.String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the network configurations")
	cniBin := fs.String("cni-bin", "/opt/cni/bin", "`FOLDER` of the network plugins")
	into := fs.String("bundle", "", "also pack what a bug report needs into `FILE`, a tar.gz; - is the standard output, and the report is in it")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	in, err := inspector(ctx, e, *path)
	if err != nil {
		return err
	}
	in.CNIConf, in.CNIBin = *cniConf, *cniBin
	if *into == "-" && *asJSON {
		return badConfig(errors.New("--bundle - and --json: the standard output takes one of them"))
	}
	report := in.Doctor(ctx)
	switch {
	case *into == "-":
	case *asJSON:
		err = printJSON(e, report)
	default:
		_, err = io.WriteString(e.stdout, report.Text())
	}
	if err == nil && *into != "" {
		err = writeBundle(in.Bundle(ctx, report, e.version, *path), e.stdout, *into)
	}
	if err != nil {
		return err
	}
	if !report.Good {
		return &exitError{code: exitDegraded}
	}
	return nil
}

// writeBundle writes a report into a file that only its owner can read, or to stdout.
func writeBundle(b *bundle.Bundle, stdout io.Writer, into string) error {
	write := func() error { return b.Write(stdout) }
	if into != "-" {
		write = func() error { return atomicfile.Stream(into, atomicfile.Options{Mode: 0o600}, b.Write) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
