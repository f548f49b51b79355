//go:build edgebench

package edge_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// peer is a server next to the edge. Its files lie in a folder of its own, where FOLDER stands for its name and AT for its address.
type peer struct {
	name  string
	does  string // with what it answers
	files map[string]string
	args  []string
}

// plainZone is what a zone has without its hosts.
const plainZone = `@ 30 IN SOA ns h 1 60 60 3600 60
@ 30 IN NS ns
ns 30 IN A 192.0.2.53
`

// chosen are what the servers choose from: three clusters with two addresses each.
func chosen() string {
	var b strings.Builder
	for i := range 6 {
		fmt.Fprintf(&b, "app 30 IN A 203.0.113.%d\n", i+1)
	}
	return b.String()
}

func peers(coredns string) []peer {
	return []peer{
		{"CoreDNS", "file, loadbalance: all six", map[string]string{
			"Corefile": "shared.example {\n bind AT\n loadbalance\n file FOLDER/zone shared.example\n}\n",
			"zone":     "$ORIGIN shared.example.\n" + plainZone + chosen()},
			[]string{coredns, "-conf", "FOLDER/Corefile"}},
		{"PowerDNS", "LUA pickwrandom: one of six, by weight", map[string]string{
			"pdns.conf":  "launch=bind\nbind-config=FOLDER/named.conf\nenable-lua-records=yes\nlocal-address=AT\nsocket-dir=FOLDER\nwrite-pid=no\nguardian=no\ndaemon=no\nsecurity-poll-suffix=\nreceiver-threads=1\ndistributor-threads=1\n",
			"named.conf": "zone \"shared.example\" { type master; file \"FOLDER/zone\"; };\n",
			"zone": "$ORIGIN shared.example.\n" + plainZone +
				`app 30 IN LUA A "pickwrandom({{3,'203.0.113.1'},{3,'203.0.113.2'},{2,'203.0.113.3'},{2,'203.0.113.4'},{1,'203.0.113.5'},{1,'203.0.113.6'}})"` + "\n"},
			[]string{"pdns_server", "--config-dir=FOLDER"}},
		{"Knot", "geoip, weighted: one of six, by weight", map[string]string{
			"knot.conf": "server:\n  listen: AT@53\n  rundir: FOLDER\n  udp-workers: 1\n  tcp-workers: 1\n  background-workers: 1\ndatabase:\n  storage: FOLDER\nmod-geoip:\n  - id: w\n    config-file: FOLDER/geo\n    ttl: 30\n    mode: weighted\nzone:\n  - domain: shared.example\n    file: FOLDER/zone\n    zonefile-sync: -1\n    journal-content: none\n    module: mod-geoip/w\n",
			"geo":       "app.shared.example.:\n  - weight: 3\n    A: 203.0.113.1\n  - weight: 3\n    A: 203.0.113.2\n  - weight: 2\n    A: 203.0.113.3\n  - weight: 2\n    A: 203.0.113.4\n  - weight: 1\n    A: 203.0.113.5\n  - weight: 1\n    A: 203.0.113.6\n",
			"zone":      "$ORIGIN shared.example.\n" + plainZone + chosen()},
			[]string{"knotd", "-c", "FOLDER/knot.conf"}},
		{"gdnsd", "weighted: one of six, by weight", map[string]string{
			"config":               "options => { listen => AT, run_dir => FOLDER/run, state_dir => FOLDER/state, udp_threads => 1, tcp_threads => 1 }\nplugins => { weighted => { service_types = up, app => { a = [ 203.0.113.1, 3 ], b = [ 203.0.113.2, 3 ], c = [ 203.0.113.3, 2 ], d = [ 203.0.113.4, 2 ], e = [ 203.0.113.5, 1 ], f = [ 203.0.113.6, 1 ] } } }\n",
			"zones/shared.example": "@ 30 SOA ns h 1 60 60 3600 60\n@ 30 NS ns\nns 30 A 192.0.2.53\napp 30 DYNA weighted!app\n",
			"run/.keep":            "", "state/.keep": ""},
			[]string{"gdnsd", "-c", "FOLDER", "start"}},
	}
}

// TestBench measures answers for one second of CPU time, which other load on the machine does not change much: the edge with ranges,
// weights and ECS on, next to other servers (make bench-edge).
func TestBench(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("NEARDNS_EDGE_BENCH"))
	if err != nil {
		rounds = 5
	}
	ns := node(t, "192.0.2.53/32", edgeAt+"/32", "192.0.2.21/32", "192.0.2.22/32", "192.0.2.23/32", "192.0.2.24/32", "10.1.0.1/32")
	p := primary(t, ns, zoneserver.BIND)
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\ngeo: {resolvers: [198.51.100.0/24], ranges: [{network: 10.1.0.0/16, codes: [IE, GEO-EU]}, {network: 192.0.2.0/24, codes: [DE, GEO-EU]}]}\n")
	for i, geo := range []string{"geo-eu", "geo-eu", "geo-na"} {
		publish(t, p, publication{host: "app", cluster: fmt.Sprintf("cluster%02d", i), strategy: "loadbalanced", geo: geo,
			addresses: []string{fmt.Sprintf("203.0.113.%d", 2*i+1), fmt.Sprintf("203.0.113.%d", 2*i+2)}})
	}
	host := "app." + p.Zone()
	testutil.Eventually(t, func() error {
		got, err := e.addresses(host)
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
	pin(t, e.PID())
	at := map[string]string{"edge": edgeAt}
	pid := map[string]int{"edge": e.PID()}
	does := map[string]string{"edge": "geo, health and weight: two of six"}
	names := []string{"edge"}
	for i, one := range peers(made.Path("coredns")) {
		address := fmt.Sprintf("192.0.2.%d", 21+i)
		folder := t.TempDir()
		put := strings.NewReplacer("FOLDER", folder, "AT", address)
		for name, text := range one.files {
			file := filepath.Join(folder, name)
			testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
			testutil.Must(t, os.WriteFile(file, []byte(put.Replace(text)), 0o644))
		}
		args := slices.Clone(one.args)
		for n := range args {
			args[n] = put.Replace(args[n])
		}
		process := ns.StartCmd(exec.CommandContext(t.Context(), args[0], args[1:]...)) //nolint:gosec // the table's
		other := &edge{t: t, ns: ns, at: address, Process: process}
		testutil.Eventually(t, func() error {
			m, err := other.ask(new(dns.Msg).SetQuestion(host, dns.TypeA))
			if err == nil && len(m.Answer) == 0 {
				err = fmt.Errorf("%v", m)
			}
			return testutil.ErrorIf(err != nil, "%s: %w\n%s", one.name, err, process.Output())
		})
		pin(t, process.PID())
		at[one.name], pid[one.name], does[one.name] = address, process.PID(), one.does
		names = append(names, one.name)
	}
	questions := filepath.Join(t.TempDir(), "questions")
	testutil.Must(t, os.WriteFile(questions, []byte(host+" A\n"), 0o644))
	rates := map[string][]float64{}
	for range rounds {
		for _, name := range names {
			before := cpu(t, pid[name])
			answered := load(t, ns, at[name], questions)
			rates[name] = append(rates[name], answered/(cpu(t, pid[name])-before).Seconds())
		}
	}
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	fmt.Println("| server | answers with | edge's answers a second of CPU, as a multiple |\n| --- | --- | --- |")
	for _, name := range names[1:] {
		var ratios []float64
		for i := range rounds {
			ratios = append(ratios, rates["edge"][i]/rates[name][i])
		}
		low, high := slices.Min(ratios), slices.Max(ratios)
		ratio := median(ratios)
		fmt.Printf("| %s | %s | %.2f (%.2f to %.2f) |\n", name, does[name], ratio, low, high)
		if (name == "CoreDNS" || name == "PowerDNS") && ratio < 1 {
			t.Errorf("%s answers more for its CPU time: %.2f", name, ratio)
		}
	}
}

// pin gives a process one CPU, the first.
func pin(t *testing.T, pid int) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "taskset", "-a", "-p", "-c", "0", strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// cpu is the CPU time that a process has used (proc(5): fields 14 and 15 of stat, in ticks of 10 ms).
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	text := testutil.ReadFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		testutil.Must(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

var completed = regexp.MustCompile(`Queries completed:\s+(\d+)`)

// load sends queries for three seconds from the second CPU, and returns how many queries were answered.
func load(t *testing.T, ns *testutil.NetNS, at, questions string) float64 {
	t.Helper()
	var out []byte
	var err error
	ns.Do(func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err = exec.CommandContext(ctx, "taskset", "-c", "1", "dnsperf", "-s", at, "-a", "10.1.0.1", "-d", questions, "-l", "3", "-c", "4", "-q", "100").CombinedOutput()
	})
	m := completed.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || n == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	return n
}
