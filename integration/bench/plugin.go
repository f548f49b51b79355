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
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// cniCall runs a CNI plugin as a runtime does: a process in the host's netns, the configuration on its standard input.
type cniCall struct {
	bin, id, netns string
	host           *testutil.NetNS
	conf           map[string]any
}

func (c cniCall) run(verb string) error {
	s, err := newSubject(c.host, c.conf, c.bin)
	if err != nil {
		return err
	}
	defer s.close()
	s.env = append(s.env, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.netns, "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(c.bin))
	c.host.Do(func() { _, _, err = s.run() })
	return err
}

// subject is one process that is measured again and again.
type subject struct {
	args  []string
	env   []string
	stdin *os.File
	host  *testutil.NetNS
	// before puts things as they are at a first call; nil for nothing. It is not measured.
	before func() error
}

func newSubject(host *testutil.NetNS, stdin any, args ...string) (*subject, error) {
	data, err := json.Marshal(stdin)
	if err != nil {
		return nil, err
	}
	// A file, not a pipe: whoever starts the process need not feed it.
	f, err := os.CreateTemp("", "neardns-bench-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	if _, err = f.Write(data); err != nil {
		return nil, err
	}
	return &subject{args: args, env: []string{"PATH=" + os.Getenv("PATH")}, stdin: f, host: host}, nil
}

func (s *subject) close() { _ = s.stdin.Close() }

// run starts the process in the netns of the calling thread and waits for its end. It returns how long that took, and how
// long the process and its children ran on a CPU.
func (s *subject) run() (wall, cpu time.Duration, err error) {
	if _, err := s.stdin.Seek(0, 0); err != nil {
		return 0, 0, err
	}
	if s.before != nil {
		if err := s.before(); err != nil {
			return 0, 0, err
		}
	}
	output, err := os.CreateTemp("", "neardns-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer output.Close()
	_ = os.Remove(output.Name())
	cmd := exec.CommandContext(context.Background(), s.args[0], s.args[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.env, s.stdin, output, output
	begun := time.Now()
	err = cmd.Run()
	wall = time.Since(begun)
	if err != nil {
		text := make([]byte, 4096)
		n, _ := output.ReadAt(text, 0)
		return 0, 0, fmt.Errorf("%s %s: %w\n%s", filepath.Base(s.args[0]), strings.Join(s.args[1:], " "), err, text[:n])
	}
	return wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

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

// place is a pod on a node with something beside it.
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

// pair is a subject that does and one that undoes.
type pair struct {
	name     string
	do, undo *subject
}

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

func (b *bench) ours(p place, i int) pair {
	return b.oursWith(strings.TrimSpace("neardns "+p.name), p, b.folder(fmt.Sprintf("plugin%d", i)), nil)
}

// overlaid is ours with everything about pods' DNS settings: rules for all pods and for the pod's namespace, one that starts from
// the node's resolv.conf, annotations (one of them in YAML, one that is wrong), and the sandbox's file, which is as the runtime
// made it at each call.
func (b *bench) overlaid(p place) pair {
	dir := b.folder("overlaid")
	file := filepath.Join(dir, "sandboxes", "bench", "resolv.conf")
	b.must(os.MkdirAll(filepath.Dir(file), 0o755))                                                                      //nolint:gosec // as a runtime has it
	b.must(os.WriteFile(filepath.Join(dir, "host.conf"), []byte("nameserver 192.0.2.1\nsearch corp.example\n"), 0o644)) //nolint:gosec // as /etc/resolv.conf is
	made := b.oursWith("overlaid", p, dir, map[string]any{
		"resolvConfPaths": []string{filepath.Join(dir, "sandboxes", "{id}", "resolv.conf")}, "hostResolvConf": filepath.Join(dir, "host.conf"),
		"dns": map[string]any{
			"options": []string{"timeout:2", "attempts:3"}, "limits": "kubernetes", "excess": "refuse",
			"namespaces": map[string]any{"default": map[string]any{"policy": "ClusterFirst", "searches": []string{"team.example"}}, "other": map[string]any{"options": []string{"ndots:1"}}},
		},
	})
	made.do.before = func() error {
		return os.WriteFile(file, []byte("search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver "+clusterDNS.String()+"\noptions ndots:5\n"), 0o644) //nolint:gosec // as a runtime does
	}
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
		text, err := os.ReadFile(file)
		b.must(err)
		if !strings.Contains(string(text), "corp.example team.example pod.example") || !strings.Contains(string(text), "options ndots:2 edns0") {
			b.t.Fatalf("the overlay is not in the file:\n%s", text)
		}
		_, _, err = made.undo.run()
		b.must(err)
	})
	return made
}

// oursWith is our plugin on a pod with more in its configuration.
func (b *bench) oursWith(name string, p place, dir string, more map[string]any) pair {
	addresses := []string{clusterDNS.String()}
	if p.dual {
		addresses = append(addresses, "fd00:96::a")
	}
	// Proven, as on a node that has been up: the plugin reads the proof at every ADD.
	b.must(podfile.WriteProof(filepath.Join(dir, "persist"), podfile.Proof{ClusterDNS: p.node.ClusterDNS(), Time: time.Now()}))
	given := map[string]any{"dns": map[string]any{"servers": addresses, "searches": []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"}, "options": []string{"ndots:5"}}}
	if more != nil {
		given["io.kubernetes.cri.pod-annotations"] = map[string]string{
			"neardns.io/dns-params":        "search:\n- pod.example\noptions:\n- name: ndots\n  value: 2\n- name: edns0\n",
			"neardns.io/search-completion": "true", "neardns.io/steer": "perhaps",
		}
	}
	conf := pluginConf(dir, p.pod, map[string]any{"redirects": addresses, "capabilities": map[string]any{"dns": true}, "runtimeConfig": given})
	maps.Copy(conf, more)
	made := pair{name: name}
	for verb, to := range map[string]**subject{"ADD": &made.do, "DEL": &made.undo} {
		s, err := newSubject(p.node.Host, conf, b.installed(b.bin("neardns")))
		b.must(err)
		s.env = append(s.env, cniEnv(verb, p.pod)...)
		*to = s
	}
	// Once by hand, to see that it does what it is measured for.
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
		f, err := podfile.Read(podfile.Path(filepath.Join(dir, "state"), "bench", "eth0"))
		b.must(err)
		if len(f.In(podfile.Steered)) != len(addresses) {
			b.t.Fatalf("%s: the pod is not steered: %+v", made.name, f.Decisions)
		}
		_, _, err = made.undo.run()
		b.must(err)
	})
	return made
}

// installed returns a copy of a binary, which is what an installer leaves on a node. What the linker has just written lies in
// the page cache in single pages, and starts a tenth slower.
func (b *bench) installed(binary string) string {
	data, err := os.ReadFile(binary)
	b.must(err)
	to := filepath.Join(b.folder("installed"), filepath.Base(binary))
	if _, err := os.Stat(to); err != nil {
		b.must(os.WriteFile(to, data, 0o755)) //nolint:gosec // it is run
	}
	return to
}

func cniEnv(verb string, pod *testutil.Pod) []string {
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=bench", "CNI_NETNS=" + pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=7c1f",
	}
}

func (b *bench) bare(p place, bin string) pair {
	addresses := clusterDNS.String()
	if p.dual {
		addresses += ",fd00:96::a"
	}
	do, err := newSubject(p.node.Host, nil, bin, "apply", p.pod.Path(), addresses)
	b.must(err)
	undo, err := newSubject(p.node.Host, nil, bin, "remove", p.pod.Path(), addresses)
	b.must(err)
	return pair{strings.TrimSpace("bare " + p.name), do, undo}
}

func (b *bench) portmap(p place) pair {
	conf := pluginConf(b.folder("portmap"), p.pod, map[string]any{
		"type": "portmap", "backend": "nftables", "capabilities": map[string]any{"portMappings": true},
		"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}}},
	})
	made := pair{name: "portmap"}
	for verb, to := range map[string]**subject{"ADD": &made.do, "DEL": &made.undo} {
		s, err := newSubject(p.node.Host, conf, b.installed(b.bin("tools/portmap")))
		b.must(err)
		s.env = append(s.env, cniEnv(verb, p.pod)...)
		*to = s
	}
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
	})
	if rules := p.node.Host.Run("nft", "list", "ruleset"); !strings.Contains(rules, "18080") {
		b.t.Fatalf("portmap made no nftables rules")
	}
	p.node.Host.Do(func() {
		_, _, err := made.undo.run()
		b.must(err)
	})
	return made
}

func (b *bench) pluginRows(wall, cpu map[string][]float64) {
	b.compare(pluginPart, "ADD with overlays, annotations and the sandbox's file", "the same without", "ms", wall["ADD overlaid"], wall["ADD neardns"], overlayLimit)
	b.compare(pluginPart, "ADD with overlays, annotations and the sandbox's file, CPU time", "the same without", "ms", cpu["ADD overlaid"], cpu["ADD neardns"], 0)
	for _, verb := range []string{"ADD", "DEL"} {
		ours := verb + " neardns"
		compare := func(subject, than, our, their string, limit float64) {
			b.compare(pluginPart, verb+subject, than, "ms", wall[our], wall[their], limit)
			b.compare(pluginPart, verb+subject+", CPU time", than, "ms", cpu[our], cpu[their], 0)
		}
		compare("", "a process that only makes the transaction", ours, verb+" bare", bareLimit)
		compare(", dual stack", "a process that only makes the transaction", ours+" dual stack", verb+" bare dual stack", bareLimit)
		compare("", "portmap, nftables, one port", ours, verb+" portmap", 1)
		for _, beside := range []string{"10,000 nft rules on the host", "10,000 iptables rules on the host", "10,000 nft rules in the pod"} {
			compare(" beside "+beside, "the same without", ours+" "+beside, ours, besideLimit)
		}
	}
}

// inside takes in what the plugin's own benchmark measures without process starts.
func (b *bench) inside() {
	out := filepath.Join(b.dir, "verbs.json")
	args := []string{"test", "-run", "^$", "-bench", "^BenchmarkVerbs$", "-benchtime", "1x", "-count", "1"}
	if b.rounds < paired.Rounds {
		args = append(args, "-short") // only to see that it works
	}
	cmd := exec.CommandContext(context.Background(), "go", append(args, "./plugins/neardns")...)
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), "NEARDNS_BENCH_OUT="+out)
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

// size tells how big the binaries are.
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
