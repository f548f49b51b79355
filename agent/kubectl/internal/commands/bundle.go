package commands

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect/bundle"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
)

// maxLog is the maximum size of one agent's log in the archive, in bytes.
const maxLog = 1 << 20

func bundleCommand(o *cluster.Options) *cobra.Command {
	c := &cobra.Command{Use: "bundle", Short: "write a bug report of every node, without secrets and queried names (needs pods/exec)"}
	file := c.Flags().StringP("file", "f", "neardns-cluster.tar", "`FILE` to write; one that exists is not overwritten")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := o.Open(c.ErrOrStderr())
		if err != nil {
			return err
		}
		agents, err := cl.Agents(c.Context())
		if err != nil {
			return err
		}
		agents = slices.DeleteFunc(agents, func(a cluster.Agent) bool { return a.Excluded })
		f, err := os.OpenFile(*file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return cli.Usagef("--file %s: it exists; name another file", *file)
		} else if err != nil {
			return err
		}
		missing, err := pack(c.Context(), cl, agents, f, time.Now())
		if err := errors.Join(err, f.Close()); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", *file, err), os.Remove(*file))
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: %d of %d nodes\n", *file, len(agents)-missing, len(agents))
		if missing > 0 {
			return &cli.ExitError{Code: cli.Degraded, Err: fmt.Errorf("%s in the file has the reasons for the others", missingName)}
		}
		return nil
	}
	return c
}

// missingName is the file in the archive that lists the nodes that could not be read, with the reasons.
const missingName = "MISSING.txt"

// pack writes an archive with two files for each node that can be read: the report that `neardns-agent doctor --bundle` makes there, and
// the end of its agent's log. The same rules remove secrets and queried names from both. missing is the number of nodes without a report.
func pack(ctx context.Context, c *cluster.Cluster, agents []cluster.Agent, w io.Writer, now time.Time) (missing int, err error) {
	type parts struct {
		report, log []byte
		logErr      error
	}
	nodes, errs := cluster.ExecAll(ctx, c, agents, func(ctx context.Context, a cluster.Agent) (p parts, err error) {
		p.log, p.logErr = c.Log(ctx, a.Pod, maxLog)
		p.report, err = c.Exec(ctx, a.Pod, "doctor", "--bundle", "-")
		return p, err
	})
	packed := tar.NewWriter(w)
	put := func(name string, text []byte) {
		if err == nil && len(text) > 0 {
			err = packed.WriteHeader(&tar.Header{Name: "neardns-cluster/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: now,
				Format: tar.FormatPAX})
		}
		if err == nil {
			_, err = packed.Write(text)
		}
	}
	var reasons strings.Builder
	for i, a := range agents {
		put(a.Node+".tar.gz", nodes[i].report)
		put(a.Node+".log", []byte(bundle.CleanLog(string(nodes[i].log))))
		if errs[i] != nil {
			missing++
			fmt.Fprintf(&reasons, "%s: %v\n", a.Node, errs[i])
		}
		if nodes[i].logErr != nil {
			fmt.Fprintf(&reasons, "%s.log: %v\n", a.Node, nodes[i].logErr)
		}
	}
	put(missingName, []byte(reasons.String()))
	return missing, errors.Join(err, packed.Close())
}
