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
	"os/exec"
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
	err := run(signalled(), *clean)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	os.Exit(exitCode(err))
}

// signalError is the signal that ended the demo.
type signalError syscall.Signal

func (e signalError) Error() string {
	return fmt.Sprintf("ended by signal: %s; everything was taken away again", syscall.Signal(e))
}

// exitCode is 0 only if all was as it should be; after a signal it is what a shell makes of one.
func exitCode(err error) int {
	if cause := signalError(0); errors.As(err, &cause) {
		return 128 + int(cause)
	}
	if err != nil {
		return 1
	}
	return 0
}

// signalled returns a context that ends with the first signal. Later ones are swallowed, since everything is being taken
// away then. A reader that goes away (make demo | head) is one, too.
func signalled() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	go func() {
		for s := range signals {
			if number, ok := s.(syscall.Signal); ok {
				cancel(signalError(number))
			}
		}
	}()
	return ctx
}

func run(ctx context.Context, clean bool) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules: run it with sudo")
	}
	// nft and ip lie where some users' PATH does not lead.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
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
	_, statErr := os.Stat("/proc/sys/net/ipv6")
	s := &show{ctx: ctx, keep: keep, proxy: proxy, ipv6: statErr == nil, bin: bin, started: time.Now(), style: styleOf(os.Stdout, os.Getenv("NO_COLOR") != "")}
	err = testutil.Program(ctx, os.Stdout, s.run)
	if cause := signalError(0); errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	if verdict := s.verdict(os.Stdout); err == nil {
		err = verdict
	}
	return err
}

// binaries finds what `make build tools` left in bin/.
func binaries() (string, error) {
	for _, name := range []string{"dig", "nft", "ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			return "", fmt.Errorf("no program %s: install it by `make deps`", name)
		}
	}
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
