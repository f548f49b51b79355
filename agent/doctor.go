package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/internal/cli"
)

func doctorCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "doctor", Short: "report what is wrong on this node and what to do; it changes nothing"}
	var into string
	path := configFlag(c)
	cniConf := c.Flags().String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the CNI network configurations")
	cniBin := c.Flags().String("cni-bin", "/opt/cni/bin", "`FOLDER` of the CNI plugins")
	c.Flags().StringVar(&into, "bundle", "",
		"also write the data for a bug report to `FILE`, a tar.gz; \"-\" writes it to standard output, including the doctor's report")
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if format := out.String(); into == "-" && format != "" {
			return cli.Usagef("--bundle - and -o %s: the standard output takes one of them", format)
		}
		if st, err := os.Lstat(into); err == nil && into != "-" && !st.Mode().IsRegular() { // a rename would replace it
			return cli.Usagef("--bundle %s: it exists and is no regular file; name another file, or - for the standard output", into)
		}
		in, err := inspector(c.Context(), e, *path)
		if err != nil {
			return err
		}
		in.CNIConf, in.CNIBin = *cniConf, *cniBin
		report := in.Doctor(c.Context())
		if into != "-" {
			err = out.Print(e.Stdout, report, report.Text)
		}
		if err == nil && into != "" {
			err = in.Bundle(c.Context(), report, e.Version, *path).Save(e.Stdout, into)
		}
		if err == nil && !report.Good {
			err = &cli.ExitError{Code: cli.Degraded}
		}
		return err
	}
	return c
}
