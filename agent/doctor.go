package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
)

func doctorCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "doctor", Short: "report what is wrong on this node and what to do; it changes nothing"}
	var path, into string
	in := inspect.Inspector{ReadFile: e.readFile}
	configFlag(c, &path)
	c.Flags().StringVar(&in.CNIConf, "cni-conf", "/etc/cni/net.d", "`FOLDER` of the CNI network configurations")
	c.Flags().StringVar(&in.CNIBin, "cni-bin", "/opt/cni/bin", "`FOLDER` of the CNI plugins")
	c.Flags().StringVar(&into, "bundle", "",
		"also write the data for a bug report to `FILE`, a tar.gz; \"-\" writes it to standard output, including the doctor's report")
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		format, err := out.Format()
		if err != nil {
			return err
		}
		if into == "-" && format != "" {
			return cli.Usagef("--bundle - and -o %s: the standard output takes one of them", format)
		}
		if st, err := os.Lstat(into); err == nil && into != "-" && !st.Mode().IsRegular() { // a rename would replace it
			return cli.Usagef("--bundle %s: it exists and is no regular file; name another file, or - for the standard output", into)
		}
		if in.Conf, in.Fault, err = inEffect(c.Context(), e, path); err != nil {
			return err
		}
		report := in.Doctor(c.Context())
		if into != "-" {
			err = out.Print(e.stdout, report, report.Text)
		}
		if err == nil && into != "" {
			err = in.Bundle(c.Context(), report, e.version, path).Save(e.stdout, into)
		}
		if err == nil && !report.Good {
			err = &cli.ExitError{Code: cli.Degraded}
		}
		return err
	}
	return c
}
