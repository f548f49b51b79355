package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// What the cluster's DNS knows, and what the world outside does.
const (
	clusterZone = `$ORIGIN cluster.local.
$TTL 30
@                IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30
web.shop.svc     IN A    10.96.7.7
web.shop.svc     IN AAAA fd00:96::77
stock.shop.svc   IN A    10.96.8.8
marker           IN A    192.0.2.1
*.marker         IN A    192.0.2.1
*.fresh.shop.svc IN A    10.96.9.9
`
	outsideZone = `$ORIGIN example.org.
$TTL 300
@                IN SOA ns.example.org. hostmaster.example.org. 1 7200 1800 86400 60
www              IN A    203.0.113.80
`
	clusterName = "web.shop.svc.cluster.local."
	otherName   = "stock.shop.svc.cluster.local."
	outsideName = "www.example.org."
)

// server is a stock CoreDNS whose log has the client and the name of each query.
type server struct{ log string }

// coreDNS starts a CoreDNS in a namespace.
func (s *show) coreDNS(ns *testutil.NetNS, name, zoneName, zone, rest string) *server {
	dir := filepath.Join(folder, name)
	s.write(filepath.Join(dir, "zone"), zone)
	s.write(filepath.Join(dir, "Corefile"), fmt.Sprintf("%s {\n    log\n    errors\n    file %s\n}\n%s", zoneName, filepath.Join(dir, "zone"), rest))
	srv := &server{log: filepath.Join(dir, "log")}
	s.start(ns, srv.log, filepath.Join(s.bin, "tools/coredns"), "-conf", filepath.Join(dir, "Corefile"))
	return srv
}

// start runs a program in a namespace with its output in a file. With KEEP it may outlive the demo, if that ends well.
func (s *show) start(ns *testutil.NetNS, log string, args ...string) *testutil.Process {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatalf("open log: %v", err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if !s.keep {
		return ns.StartCmd(cmd)
	}
	cmd = exec.Command(args[0], args[1:]...) // no context: its end must not end the program
	cmd.Stdout, cmd.Stderr = out, out
	p := ns.StartDetached(cmd)
	s.t.Cleanup(func() {
		if !s.kept {
			p.Kill()
		}
	})
	return p
}

// cluster makes the node, kube-dns behind kube-proxy's rules, and a DNS server outside.
func (s *show) cluster() {
	families := testutil.IPv4
	if s.ipv6 {
		families = testutil.Dual
	}
	s.node = testutil.NewNode(s.t, testutil.Options{Families: families, Proxy: s.proxy, Attach: testutil.NoneAttach, NoDNS: true, External: true, Name: "demo"})
	external := s.node.ExternalAddrs()[0]
	s.outside = s.coreDNS(s.node.ExternalNS, "outside", "example.org", outsideZone, "")
	s.kubeDNS = s.coreDNS(s.node.KubeDNS, "kube-dns", "cluster.local", clusterZone,
		fmt.Sprintf(". {\n    log\n    errors\n    forward . %s\n}\n", external))
	s.write(filepath.Join(folder, "node-resolv.conf"), fmt.Sprintf("nameserver %s\n", external))
	for _, cluster := range s.node.ClusterDNS() {
		testutil.Eventually(s.t, func() error {
			_, err := testutil.Ask(s.node.Host, netip.AddrPortFrom(cluster, 53), clusterName, typeA, "udp", testutil.AskOptions{Timeout: 500 * time.Millisecond})
			return err
		})
	}
}

// asked is one query in a CoreDNS's log.
type asked struct {
	from netip.Addr
	name string
}

var logLine = regexp.MustCompile(`(?m)^\[INFO\] (\S+):\d+ - \d+ "\S+ IN (\S+) `)

// heard returns the queries for name that reached the server so far. A query of our own, sent last, makes sure that
// all earlier ones have been written down.
func (s *show) heard(srv *server, name string) []asked {
	if srv == s.kubeDNS {
		s.markers++
		marker := fmt.Sprintf("m%d.marker.cluster.local.", s.markers)
		at := netip.AddrPortFrom(s.node.KubeDNSAddrs()[0], 53)
		if _, err := testutil.Ask(s.node.Host, at, marker, typeA, "udp", testutil.AskOptions{}); err != nil {
			s.t.Fatalf("ask kube-dns itself: %v", err)
		}
		testutil.Eventually(s.t, func() error {
			if len(questions(s.t, srv.log, marker)) == 0 {
				return fmt.Errorf("kube-dns did not write down %s", marker)
			}
			return nil
		})
	}
	return questions(s.t, srv.log, name)
}

func questions(t testutil.TB, log, name string) []asked {
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatalf("read log: %v", err)
	}
	return parseLog(string(text), name)
}

// parseLog picks the queries for one name out of a CoreDNS's log.
func parseLog(text, name string) []asked {
	var out []asked
	for _, m := range logLine.FindAllStringSubmatch(text, -1) {
		if from, err := netip.ParseAddr(strings.Trim(m[1], "[]")); err == nil && strings.EqualFold(m[2], name) {
			out = append(out, asked{from, m[2]})
		}
	}
	return out
}

func (s *show) write(file, text string) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		s.t.Fatalf("make folder: %v", err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.t.Fatalf("write file: %v", err)
	}
}

func (s *show) read(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatalf("read file: %v", err)
	}
	return string(text)
}
