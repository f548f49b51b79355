// Command neardns-install installs and removes the neardns CNI plugin on a node: the binary in the CNI binary folder, and its entry in the
// network configuration that the container runtime uses.
//
// It never makes a network of its own, writes a file that it could not read, or leaves a half-written file where a runtime looks. It
// decides nothing about DNS: the entry comes from the node's configuration, which the agent's binary reads.
//
// Failure policy: an error before the first write leaves the node unchanged. An error after it leaves a node that works, and the next run
// continues. Exit codes: 0 success, 1 failed, 2 bad configuration.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/platform"
	"github.com/neardns/neardns/pkg/version"
)

// errConfig marks an error that only a changed configuration can fix. The exit code is then 2.
var errConfig = errors.New("bad configuration")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	const program = "neardns-install"
	root := cli.New(program, "put the CNI plugin neardns on a node, keep it there, or remove it", version.String())
	root.AddCommand(installCommand(stdout), watchCommand(stdout), checkCommand(stdout), uninstallCommand(stdout), followCommand(stdout),
		stayCommand(stdout), cli.Version(program, version.String()))
	return cli.Run(ctx, root, args, stdout, stderr)
}

// coded gives an error its exit code.
func coded(err error) error {
	if errors.Is(err, errConfig) {
		return cli.Usage(err)
	}
	return err
}

// folders are the paths and flags that install and uninstall share.
type folders struct {
	bin, conf string
	file      string // the network's file in conf; empty: the one that the runtime uses
	dryRun    bool
}

func (f *folders) flags(set *pflag.FlagSet) {
	here := platform.Here(func(path string) bool { _, err := os.Stat(path); return err == nil })
	set.StringVar(&f.bin, "cni-bin", here.CNIBin, "`FOLDER` of the runtime's CNI plugins")
	set.StringVar(&f.conf, "cni-conf", here.CNIConf, "`FOLDER` of the runtime's network configurations")
	set.StringVar(&f.file, "file", "", "`NAME` of the conflist in --cni-conf to edit; without it, the first one, which the "+
		"runtime uses. For CRI-O with cni_default_network, and for the delegate of Multus")
}

func (f *folders) dryRunFlag(set *pflag.FlagSet) {
	set.BoolVar(&f.dryRun, "dry-run", false, "only show what would change")
}

func (f *folders) validate() error {
	if f.file != "" && f.file != filepath.Base(f.file) {
		return cli.Usagef("--file %s: a file's name in --cni-conf, without a path", f.file)
	}
	return nil
}

// sourceFlags adds the flags of every command that forms the entry.
func (in *install) sourceFlags(set *pflag.FlagSet) {
	in.flags(set)
	set.StringVar(&in.nodeConfig, "nodeconfig", "", "the node's configuration `file` (NodeConfig), which the entry is made from")
	set.StringVar(&in.entryFile, "entry", "", "`FILE` with the plugin's conflist entry as JSON, instead of --nodeconfig")
	set.StringVar(&in.plugin, "plugin", siblingPath("neardns"), "the plugin's `binary`")
	set.StringVar(&in.agent, "agent", siblingPath("neardns-agent"), "the agent's `binary`, which the installer runs to read the NodeConfig")
}

func (in *install) validateSource() error {
	if (in.nodeConfig == "") == (in.entryFile == "") {
		return cli.Usagef("name either --nodeconfig or --entry")
	}
	return in.validate()
}

// siblingPath is a file next to this program, where the image and `make build` put all three programs.
func siblingPath(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// pollEvery is how often await reads a folder again.
const pollEvery = 250 * time.Millisecond
