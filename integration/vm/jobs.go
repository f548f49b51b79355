package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// job is what a guest runs at a time: tests of one package.
type job struct {
	Package string // by its folder in the module
	Run     string // as go test's -run
}

const module = "github.com/neardns/neardns"

// The cells of the shared cases, in jobs of some minutes each, so that guests can share them: the iptables back end's, which run
// iptables some hundred times; and the nftables back end's. No job chooses by how pods are attached: each cell has one way only, which its
// place in the matrix decides.
func cells() []job {
	const steering = "integration/steering"
	return []job{
		{Package: steering, Run: "^TestMatrix$/^iptables-nft$/^(ipv4|ipv6|dual)$/^ipvs$"},
		{Package: steering, Run: "^TestMatrix$/^iptables-legacy$/^(ipv4|ipv6|dual)$/^ipvs$"},
		{Package: steering, Run: "^TestMatrix$/^iptables-nft$/^(ipv4|ipv6|dual)$/^iptables$"},
		{Package: steering, Run: "^TestMatrix$/^iptables-legacy$/^(ipv4|ipv6|dual)$/^iptables$"},
		{Package: steering, Run: "^TestMatrix$/^(ipv4|ipv6|dual)$/^(iptables|nftables)$"},
		{Package: steering, Run: "^TestMatrix$/^(ipv4|ipv6|dual)$/^ipvs$"},
	}
}

// everywhere are the tests that every kernel has to pass: what the tables need of it, the link, and the life of an agent with
// kube-proxy in each of its modes; and that policies end kernel hits. Long ones are first: the last to end decides how long all take.
func everywhere() []job {
	return append(cells(),
		job{Package: "pkg/steer/nft", Run: "^TestApplyIsIdempotent$"},
		job{Package: "pkg/steer/rules", Run: "^TestSwitch$/^nftables$/^ipvs$/^(ptp|bridge.brnf)$"},
		job{Package: "pkg/hostnet", Run: "^(TestWay|TestUplinks|TestWatch|TestEnd)"},
		job{Package: "agent/internal/node/link"},
		job{Package: "internal/offload/bpf", Run: "^Test(TypeOfLetters|SelfTest|Clsact|Others|OtherHooks|TornReads|Moves|SampleTable|Samples|WithoutResource)$"},
		job{Package: "integration/steering", Run: "^TestKernelHits(EndWithThePath|NeedThePath)$"},
	)
}

// whole is what the kernel of the Debian release that the tests are made for has to pass: also the rules' cases that IPVS could
// spoil, and the topology's own. What measures time is left out, and what is the same by any kube-proxy.
func whole() []job {
	return append(cells(),
		job{Package: "pkg/steer/nft", Run: "^TestApplyIsIdempotent$|^TestInterceptPods$/^ipvs$|" +
			"^(TestLeaseCutsNoConnection|TestLocalAndClusterFromOnePort|TestConnectedUDPThroughFlips)$/^ipvs$"},
		job{Package: "pkg/steer/rules", Run: "^TestSwitch$/^nftables$/^ipvs$/^(ptp|bridge.brnf)$|" +
			"^TestClusterDNSOnTheLink$/^nftables$/^ipvs$|^TestClusterDNSOnTheLink$/^iptables-nft$/^ipvs$/^alone$"},
		job{Package: "pkg/hostnet", Run: "^(TestWay|TestUplinks|TestWatch|TestEnd)"},
		job{Package: "agent/internal/node/link"},
		job{Package: "internal/offload/bpf", Run: "^Test(TypeOfLetters|SelfTest|Clsact|Others|TornReads|Moves|FullBucket|Answers|Shapes|Questions|Rotation|ReusedSlot|Hits|TakeOver|Serve|ServedPorts|Copies|Unfit|InvalidateBeside|HalfDone|OtherClock|OtherHooks|SampleTable|Samples|WithoutResource)$"},
		job{Package: "integration/steering", Run: "^TestKernelHits(EndWithThePath|NeedThePath)$|^TestDefaultInstall$|^TestUnreadAnswersFitTheContainer$"},
	)
}

// abroad is what an architecture has to pass that the other tests never run on: the life of an agent, with hits, fallbacks and kills; the
// kernel's part of the tables, of links and of routes; and the program that answers in the kernel. Of the iptables back end one cell is
// enough: what iptables' programs make of the rules is the same everywhere.
func abroad() []job {
	return []job{
		{Package: "integration/steering", Run: "^TestMatrix$/^dual$/^nftables$"},
		{Package: "integration/steering", Run: "^TestMatrix$/^iptables-nft$/^ipv4$/^iptables$"},
		{Package: "pkg/steer/nft", Run: "^TestApplyIsIdempotent$"},
		{Package: "pkg/hostnet", Run: "^(TestWay|TestUplinks|TestWatch|TestEnd)"},
		{Package: "agent/internal/node/link"},
		{Package: "internal/offload/bpf", Run: "^Test(TypeOfLetters|SelfTest|Clsact|TornReads|Moves|Answers|Shapes|Questions|Rotation|ReusedSlot|Hits|TakeOver|Serve|Copies|Unfit)$"},
		{Package: "agent/internal/hostsfile", Run: "^Test(KilledWriter|ForeignWriter|TwoWriters|File|Memory|Recall|Standing)"},
		{Package: "internal/dns/listener", Run: "^(TestNoGoroutinePerMiss|TestNoDescriptors)$"},
		{Package: "internal/dns/forward", Run: "^TestNoDescriptors$"},
		{Package: "pkg/steer", Run: "^TestNoDescriptors$"},
		{Package: "agent/internal/lifecycle/handover", Run: "^TestNoDescriptors$"},
	}
}

// plan lists the tests that are run.
func plan(o options) ([]job, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	all := everywhere()
	switch {
	case o.arch != "amd64":
		all = abroad()
	case o.kernel == "6.1":
		all = whole()
	}
	var jobs []job
	for _, j := range all {
		if !only.MatchString(j.Package) {
			continue
		}
		if o.run != "" {
			j.Run = o.run
		}
		if !slices.Contains(jobs, j) {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("-only %s matches no package of the plan", o.only)
	}
	return jobs, nil
}

const initProgram = "vm-init"

func (j job) binary() string { return path.Base(j.Package) + ".test" }

func testsDir(dir string) string    { return filepath.Join(dir, "tests") }
func programsDir(dir string) string { return filepath.Join(dir, "programs") }

// buildTests builds the tests, and the programs that they would else build themselves: the guest has Go's cache in memory
// and no time. Among them is this program, as the guest's init.
func buildTests(ctx context.Context, root, dir, arch string, jobs []job) error {
	build := func(args ...string) error { return goCommand(ctx, root, arch, args...) }
	var packages []string
	for _, j := range jobs {
		if p := "./" + j.Package; !slices.Contains(packages, p) {
			packages = append(packages, p)
		}
	}
	if err := build(append([]string{"test", "-c", "-o", testsDir(dir) + "/"}, packages...)...); err != nil {
		return err
	}
	programs := programsDir(dir)
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{
		"neardns": "./plugins/neardns", "neardns-agent": "./agent", "neardns-install": "./install", "test2json": "cmd/test2json", initProgram: "./integration/vm",
	} {
		if err := build("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(programs, name), from); err != nil {
			return err
		}
	}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	to, err := filepath.Abs(programs)
	if err != nil {
		return err
	}
	tools := filepath.Join(root, "hack/tools") // a module of its own
	return goCommand(ctx, tools, arch, "build", "-trimpath", "-buildvcs=false", "-o", to+"/", plugins+"main/ptp", plugins+"main/bridge", plugins+"ipam/host-local")
}

func goCommand(ctx context.Context, root, arch string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
