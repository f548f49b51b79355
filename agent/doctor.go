package main

import (
	"context"
	"io"
)

// runDoctor says what is wrong on this node and what to do. It only reads and asks, also where the agent is dead.
func runDoctor(ctx context.Context, e env, args []string) error {
	fs := flags(e, "doctor")
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	cniConf := fs.String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the network configurations")
	cniBin := fs.String("cni-bin", "/opt/cni/bin", "`FOLDER` of the network plugins")
	if err := parse(fs, args); err != nil {
		return err
	}
	look, err := looker(ctx, e, *path)
	if err != nil {
		return err
	}
	look.CNIConf, look.CNIBin = *cniConf, *cniBin
	report := look.Doctor(ctx)
	if *asJSON {
		err = printJSON(e, report)
	} else {
		_, err = io.WriteString(e.stdout, report.Text())
	}
	if err != nil {
		return err
	}
	if !report.Good {
		return &exitError{code: exitDegraded}
	}
	return nil
}
