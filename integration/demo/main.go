// Command demo shows what neardns does on a node that it makes out of network namespaces and throws away again: a real
// CoreDNS as kube-dns behind kube-proxy's rules, pods made by the reference CNI plugins through libcni, and the three
// programs of this project as `make build` left them. It is what `make demo` runs.
//
// It must never touch the machine's own network, /etc/cni or /run/neardns: all of its files are below one folder in /run.
//
// Failure policy: each thing shown is also checked, and the exit code is 0 only if all were as they should be. Whatever
// was made is taken away again, also when it is interrupted; with KEEP=1 it is left standing if the show got to its end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// folder holds everything that the demo writes. One place, so that the next run finds what the last one left standing.
const folder = "/run/neardns-demo"

func main() {
	clean := flag.Bool("clean", false, "only take away what a run with KEEP=1 left")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := 0
	if err := run(ctx, *clean); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

func run(ctx context.Context, clean bool) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules: run it with sudo")
	}
	unlock, err := hold()
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweepKept(); err != nil {
		return err
	}
	if clean {
		return nil
	}
	keep := os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0"
	proxy := testutil.ProxyMode(os.Getenv("PROXY"))
	switch proxy {
	case "":
		proxy = testutil.IPTables
	case testutil.IPTables, testutil.NFTables:
	default:
		return fmt.Errorf("PROXY=%s: iptables or nftables, as kube-proxy has them", proxy)
	}
	bin, err := binaries()
	if err != nil {
		return err
	}
	s := &show{ctx: ctx, keep: keep, proxy: proxy, bin: bin, started: time.Now()}
	err = testutil.Program(ctx, os.Stdout, s.run)
	if ctx.Err() != nil {
		return errors.New("interrupted; everything was taken away again")
	}
	if err == nil {
		err = s.verdict()
	}
	return err
}

// binaries finds what `make build tools` left in bin/.
func binaries() (string, error) {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"neardns", "neardns-agent", "neardns-install", "tools/coredns", "tools/ptp", "tools/host-local"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("no bin/%s here: run it by `make demo`, in the repository's folder", name)
		}
	}
	return bin, nil
}
