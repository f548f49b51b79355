// Command neardns-install installs the neardns CNI plugin on a node and removes it: the binary in the CNI binary folder, and its entry in
// the network configuration that the container runtime uses.
//
// It never creates a network configuration of its own, never writes a file that it could not parse, and never leaves a half-written file
// where a runtime looks. The entry is made from NodeConfig, which the agent's binary reads, or read from a file (--entry).
//
// On failure: an error before the first write leaves the node unchanged. After a later error, pods can still start, and the next run
// continues. Exit codes: 0 success, 1 failed, 2 bad configuration or wrong usage.
package main

import (
	"context"
	"fmt"
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

// folders has the paths and flags that install, watch, check and uninstall share.
type folders struct {
	printer
	bin, conf string
	file      string // name of the conflist in conf; "": the one that the runtime uses, or for uninstall all of them
	dryRun    bool
}

// printer prints what a command does, one line each.
type printer struct{ out io.Writer }

func (p printer) say(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }

func (f *folders) flags(set *pflag.FlagSet) {
	here, _ := platform.Here(func(path string) bool { _, err := os.Stat(path); return err == nil }, os.LookupEnv)
	set.StringVar(&f.bin, "cni-bin", here.CNIBin, "`FOLDER` with the runtime's CNI plugins")
	set.StringVar(&f.conf, "cni-conf", here.CNIConf, "`FOLDER` with the runtime's network configurations (conflists)")
	set.StringVar(&f.file, "file", "", "`NAME` of the conflist in --cni-conf to edit; default: the first one, which the "+
		"runtime uses (uninstall: all). Needed for CRI-O with cni_default_network, and for the network that Multus delegates to")
}

func (f *folders) dryRunFlag(set *pflag.FlagSet) {
	set.BoolVar(&f.dryRun, "dry-run", false, "write nothing; print what would be written")
}

func (f *folders) validate() error {
	if f.file != "" && f.file != filepath.Base(f.file) {
		return cli.Usagef("--file %s: a file's name in --cni-conf, without a path", f.file)
	}
	return nil
}

// sourceFlags adds the flags that say what to install: the NodeConfig or a ready entry, and the programs.
func (in *install) sourceFlags(set *pflag.FlagSet) {
	in.flags(set)
	set.StringVar(&in.nodeConfig, "nodeconfig", "", "`FILE` with the NodeConfig, from which the conflist entry is made")
	set.StringVar(&in.entryFile, "entry", "", "`FILE` with the plugin's conflist entry as JSON, instead of --nodeconfig")
	set.StringVar(&in.plugin, "plugin", siblingPath("neardns"), "path of the plugin's `BINARY` to install")
	set.StringVar(&in.agent, "agent", siblingPath("neardns-agent"), "path of the agent's `BINARY`, which reads the NodeConfig")
}

func (in *install) validateSource() error {
	if (in.nodeConfig == "") == (in.entryFile == "") {
		return cli.Usagef("name either --nodeconfig or --entry")
	}
	return in.validate()
}

// siblingPath returns the path of a program in the folder of this one. The image and `make build` put all three programs there.
func siblingPath(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// pollEvery is how often await reads the folder of network configurations.
const pollEvery = 250 * time.Millisecond
