package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/pkg/testutil"
)

// pluginConf is the conflist's entry as libcni hands it to our plugin, with what the plugin before it made.
func pluginConf(dir string, pod *testutil.Pod, more map[string]any) map[string]any {
	var ips []any
	for _, a := range pod.Addrs {
		ips = append(ips, map[string]any{"address": testutil.Host(a).String(), "interface": 1})
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "bench", "type": "neardns", "redirects": []string{clusterDNS.String()},
		"stateDir": filepath.Join(dir, "state"), "persistDir": filepath.Join(dir, "persist"),
		"prevResult": map[string]any{
			"cniVersion": "1.0.0", "ips": ips,
			"interfaces": []any{
				map[string]any{"name": pod.HostInterface, "mac": "0a:00:00:00:00:01"},
				map[string]any{"name": "eth0", "mac": pod.MAC().String(), "sandbox": pod.Path()},
			},
		},
	}
	maps.Copy(conf, more)
	return conf
}

// place is a pod on a node with something next to it.
type place struct {
	name string // "" is the plain one
	node *testutil.Node
	pod  *testutil.Pod
	dual bool
}

// places are: a plain node, the same with 10,000 foreign rules in the host's netns (as nft tables, and as iptables rules
// of 2,000 Services), a pod with 10,000 foreign rules in its own netns, and a dual stack node.
func (b *bench) places() []place {
	node := func(name string, families testutil.Families) (*testutil.Node, *testutil.Pod) {
		n := testutil.NewNode(b.t, testutil.Options{Attach: testutil.PTP, Families: families, Proxy: testutil.IPTables, NoDNS: true, Name: name})
		return n, n.AddPod("pod")
	}
	plain, pod := node("plain", testutil.IPv4)
	full := plain.AddPod("full")
	full.RunInput(foreignRules(), "nft", "-f", "-")
	nft, nftPod := node("nft", testutil.IPv4)
	nft.Host.RunInput(foreignRules(), "nft", "-f", "-")
	ipt, iptPod := node("ipt", testutil.IPv4)
	ipt.Host.RunInput(testutil.BulkIPTables(true, 2000), "iptables-restore", "--noflush", "-w")
	dual, dualPod := node("dual", testutil.Dual)
	return []place{
		{"", plain, pod, false},
		{"10,000 nft rules on the host", nft, nftPod, false},
		{"10,000 iptables rules on the host", ipt, iptPod, false},
		{"10,000 nft rules in the pod", plain, full, false},
		{"dual stack", dual, dualPod, true},
	}
}

// foreignRules is a table of 10,000 rules in 1,000 chains that have nothing to do with DNS.
func foreignRules() string {
	var text strings.Builder
	text.WriteString("table inet foreign {\n")
	for c := range 1000 {
		fmt.Fprintf(&text, "chain c%d {\n", c)
		for r := range 10 {
			fmt.Fprintf(&text, "ip daddr 10.%d.%d.%d tcp dport 80 counter accept\n", 128+c%100, c/100, r)
		}
		text.WriteString("}\n")
	}
	text.WriteString("chain hooked { type filter hook forward priority 10; jump c0; }\n}\n")
	return text.String()
}

const (
	pluginPart  = "Plugin: one CNI call, process start to end"
	insidePart  = "Plugin: the same within one process"
	sizePart    = "Size"
	besideLimit = 1.2
	bareLimit   = 1.5
	// overlayLimit bounds what the whole of pods' DNS settings adds to an ADD.
	overlayLimit = 1.3
)

// plugin measures ADD and DEL as processes.
func (b *bench) plugin() {
	bare := b.installed(b.build("./integration/bench/bare"))
	var pairs []pair
	for i, p := range b.places() {
		pairs = append(pairs, b.ours(p, i))
		if p.name == "" || p.dual {
			pairs = append(pairs, b.bare(p, bare))
		}
		if p.name == "" {
			pairs = append(pairs, b.portmap(p), b.overlaid(p))
		}
	}
	calls := 10
	if b.short {
		calls = 5
	}
	wall, cpu := map[string][]float64{}, map[string][]float64{}
	for round := range b.rounds + 1 { // the first one warms up
		walls, cpus := map[string][]float64{}, map[string][]float64{}
		for call := range calls {
			order := slices.Clone(pairs)
			if (round+call)%2 == 1 {
				slices.Reverse(order)
			}
			for _, p := range order {
				b.once(p.do, "ADD "+p.name, walls, cpus)
				b.once(p.undo, "DEL "+p.name, walls, cpus)
			}
		}
		if round == 0 {
			continue
		}
		for name := range walls {
			wall[name] = append(wall[name], paired.Middle(walls[name]))
			cpu[name] = append(cpu[name], paired.Middle(cpus[name]))
		}
	}
	for _, p := range pairs {
		p.do.close()
		p.undo.close()
	}
	b.pluginRows(wall, cpu)
	b.inside()
	b.size()
}

// once runs a subject in its host's netns and notes milliseconds.
func (b *bench) once(s *subject, name string, walls, cpus map[string][]float64) {
	var wall, cpu time.Duration
	var err error
	s.host.Do(func() { wall, cpu, err = s.run() })
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	walls[name] = append(walls[name], float64(wall.Microseconds())/1e3)
	cpus[name] = append(cpus[name], float64(cpu.Microseconds())/1e3)
}

// inside takes in what the plugin's own benchmark measures without process starts.
func (b *bench) inside() {
	out := filepath.Join(b.dir, "verbs.json")
	args := []string{"test", "-run", "^$", "-bench", "^BenchmarkVerbs$", "-benchtime", "1x", "-count", "1"}
	cmd := exec.CommandContext(context.Background(), "go", append(args, "./plugins/neardns")...)
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), "NEARDNS_BENCH_OUT="+out)
	if b.rounds < paired.Rounds { // only to see that it works; by -short it would be skipped, as it needs root
		cmd.Env = append(cmd.Env, "NEARDNS_BENCH_SHORT=1")
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	data, err := os.ReadFile(out)
	b.must(err)
	series := map[string][]float64{}
	b.must(json.Unmarshal(data, &series))
	for _, v := range []struct{ ours, theirs string }{{"ADD", "apply"}, {"DEL", "remove"}} {
		b.compare(insidePart, v.ours+", dual stack", "the transaction alone", "us", series[v.ours], series[v.theirs], 0)
		for _, place := range []string{"host", "pod"} {
			b.compare(insidePart, v.ours+" beside 10,000 nft rules in the "+place, "the same without", "us", series[v.ours+" foreign="+place], series[v.ours], 0)
		}
	}
}

// size reports how big the binaries are.
func (b *bench) size() {
	for _, binary := range []struct {
		name, text string
		limit      float64
	}{{"neardns", "plugin binary", 6}, {"neardns-agent", "agent binary", 0}} {
		st, err := os.Stat(b.bin(binary.name))
		b.must(err)
		b.value(sizePart, binary.text, "MB", []float64{float64(st.Size()) / 1e6}, binary.limit)
	}
}
