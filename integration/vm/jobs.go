package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// job is one package's tests in the guest.
type job struct {
	Package string // by its folder in the module
	Run     string // as go test's -run
	Skip    string // as go test's -skip
}

const module = "github.com/neardns/neardns"

// iptablesCells are the iptables back end's where no other machine has them: the hung agent's among them, as in every cell. Each
// runs iptables some hundred times, and so takes a minute under emulation.
const iptablesCells = "^TestMatrix$/^iptables-(nft|legacy)$/^(ipv4|ipv6|dual)$/^ipvs$"

// brnfCells are the nftables back end's, whatever kube-proxy: on the attachment that asks most of a kernel.
const brnfCells = "^TestMatrix$/^(ipv4|ipv6|dual)$/^(ipvs|iptables|nftables)$/^bridge.brnf$"

// everywhere are the tests that every kernel has to pass: what the tables need of it, the link, and the life of an agent with
// kube-proxy in each of its modes.
func everywhere() []job {
	return []job{
		{Package: "agent/internal/link"},
		{Package: "pkg/steer", Run: "^(TestSupported|TestApplyIsIdempotent|TestRemove|TestWay|TestUplinks)|^TestSwitch$/^ipvs$/^(ptp|bridge.brnf)$"},
		{Package: "integration/steering", Run: brnfCells},
	}
}

// whole is what the kernel of the Debian release that the tests are made for has to pass: also the other attachments with IPVS,
// the iptables back end, and the rules' cases that IPVS could spoil. What measures time is left out, and what is the same by any
// kube-proxy.
func whole() []job {
	return []job{
		{Package: "agent/internal/link"},
		{Package: "pkg/testutil", Run: "^TestNode$/^dual$/^ipvs$/^(ptp|bridge.brnf)$|^TestProxyChanges$/^ipvs$"},
		{Package: "pkg/steer", Run: "^(TestSupported|TestApplyIsIdempotent|TestRemove|TestWay|TestUplinks)|^TestInterceptPods$/^ipvs$/^bridge.brnf$|" +
			"^TestSwitch$/^ipvs$/^(ptp|bridge.brnf)$|^(TestCritiqueA05LeaseCutsNoConnection|TestCritiqueA07LocalAndClusterFromOnePort|TestConnectedUDPThroughFlips|TestClusterDNSOnTheLink)$/^ipvs$"},
		{Package: "pkg/steer/iptables", Run: "^TestClusterDNSOnTheLink$/^ipvs$/^iptables-nft$/^alone$"},
		{Package: "integration/steering", Run: brnfCells + "|^TestMatrix$/^dual$/^ipvs$/^(ptp|bridge)$|" + iptablesCells},
	}
}

// plan lists the tests that are run.
func plan(o options) ([]job, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	all := everywhere()
	if o.kernel == "6.1" {
		all = whole()
	}
	var jobs []job
	for _, j := range all {
		if !only.MatchString(j.Package) {
			continue
		}
		if o.run != "" {
			j.Run, j.Skip = o.run, ""
		}
		jobs = append(jobs, j)
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("-only %s matches no package of the plan", o.only)
	}
	return jobs, nil
}

func (j job) binary() string { return path.Base(j.Package) + ".test" }

func testsDir(dir string) string    { return filepath.Join(dir, "tests") }
func programsDir(dir string) string { return filepath.Join(dir, "programs") }

// buildTests builds the tests, and the programs that they would else build themselves: the guest has Go's cache in memory
// and no time.
func buildTests(ctx context.Context, root, dir string, jobs []job) error {
	var packages []string
	for _, j := range jobs {
		packages = append(packages, "./"+j.Package)
	}
	if err := goCommand(ctx, root, append([]string{"test", "-c", "-o", testsDir(dir) + "/"}, packages...)...); err != nil {
		return err
	}
	programs := programsDir(dir)
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{"neardns": "./plugins/neardns", "neardns-agent": "./agent", "neardns-install": "./install", "test2json": "cmd/test2json"} {
		if err := goCommand(ctx, root, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(programs, name), from); err != nil {
			return err
		}
	}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	for _, from := range []string{"main/ptp", "main/bridge", "ipam/host-local"} {
		if err := goCommand(ctx, root, "build", "-trimpath", "-buildvcs=false", "-modfile=go.tool.mod", "-o", filepath.Join(programs, path.Base(from)), plugins+from); err != nil {
			return err
		}
	}
	return nil
}

func goCommand(ctx context.Context, root string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
