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
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/version"
)

const usage = `usage:
  neardns-install install   --nodeconfig FILE | --entry FILE  [flags]
  neardns-install watch     --nodeconfig FILE | --entry FILE  [flags]
  neardns-install check     --nodeconfig FILE | --entry FILE  [flags]
  neardns-install uninstall [flags]
  neardns-install follow    --from FOLDER --to FOLDER [--once]
  neardns-install stay
  neardns-install version

Installs the CNI plugin neardns on this node and adds its entry to the network configuration that the runtime uses (install), keeps
both there (watch), checks them (check), or removes the entry (uninstall). follow copies the node's resolv.conf and certificate
authorities to a folder for the agent, at the start and at each change; stay waits until it is ended. Run a command with --help for its
flags.
`

// errConfig marks an error that only a changed configuration can fix. The exit code is then 2.
var errConfig = errors.New("bad configuration")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		_, _ = fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "install":
		err = runInstall(ctx, args[1:], stdout)
	case "watch":
		err = runWatch(ctx, args[1:], stdout)
	case "check":
		err = runCheck(ctx, args[1:], stdout)
	case "uninstall":
		err = runUninstall(ctx, args[1:], stdout)
	case "follow":
		err = runFollow(ctx, args[1:], stdout)
	case "stay":
		err = runStay(ctx, args[1:], stdout)
	case "version", "--version":
		_, err = fmt.Fprintln(stdout, "neardns-install", version.String())
	case "help", "-h", "--help":
		_, err = fmt.Fprint(stdout, usage)
	default:
		_, _ = fmt.Fprintf(stderr, "neardns-install: unknown command %q\n%s", args[0], usage)
		return 2
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errConfig):
		_, _ = fmt.Fprintln(stderr, "neardns-install:", err)
		return 2
	}
	_, _ = fmt.Fprintln(stderr, "neardns-install:", err)
	return 1
}

// folders are the paths and flags that install and uninstall share.
type folders struct {
	bin, conf string
	file      string // the network's file in conf; empty: the one that the runtime uses
	dryRun    bool
}

func (f *folders) flags(set *flag.FlagSet) {
	set.StringVar(&f.bin, "cni-bin", "/opt/cni/bin", "`folder` of the runtime's CNI plugins")
	set.StringVar(&f.conf, "cni-conf", "/etc/cni/net.d", "`folder` of the runtime's network configurations")
	set.StringVar(&f.file, "file", "", "`name` of the network's file in --cni-conf, if it is not the first one (CRI-O's "+
		"cni_default_network, the delegate of Multus)")
}

func (f *folders) dryRunFlag(set *flag.FlagSet) {
	set.BoolVar(&f.dryRun, "dry-run", false, "only show what would change")
}

// parse reads a command's flags and allows no other arguments. Help on request goes to stdout.
func (f *folders) parse(set *flag.FlagSet, args []string, stdout io.Writer) error {
	var help bytes.Buffer
	set.SetOutput(&help)
	if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, _ = help.WriteTo(stdout)
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w: `%s --help` lists the flags", errConfig, err, set.Name())
	}
	if set.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errConfig, set.Arg(0))
	}
	if f.file != "" && f.file != filepath.Base(f.file) {
		return fmt.Errorf("%w: --file %s: a file's name in --cni-conf, without a path", errConfig, f.file)
	}
	return nil
}

// sourceFlags adds the flags of every command that forms the entry.
func (in *install) sourceFlags(set *flag.FlagSet) {
	in.flags(set)
	set.StringVar(&in.nodeConfig, "nodeconfig", "", "the node's configuration `file` (NodeConfig), which the entry is made from")
	set.StringVar(&in.entryFile, "entry", "", "`file` with a ready entry, instead of --nodeconfig")
	set.StringVar(&in.plugin, "plugin", siblingPath("neardns"), "the plugin's `binary`")
	set.StringVar(&in.agent, "agent", siblingPath("neardns-agent"), "the agent's `binary`, which reads the node's configuration")
}

func (in *install) parseSource(set *flag.FlagSet, args []string, stdout io.Writer) error {
	if err := in.parse(set, args, stdout); err != nil {
		return err
	}
	if (in.nodeConfig == "") == (in.entryFile == "") {
		return fmt.Errorf("%w: name either --nodeconfig or --entry", errConfig)
	}
	return nil
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
