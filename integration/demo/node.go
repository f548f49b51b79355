package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// What the throw-away cluster knows.
const (
	clusterZone = `$ORIGIN cluster.local.
$TTL 30
@                      IN SOA  ns.dns hostmaster 1 7200 1800 86400 5
@                      IN NS   ns.dns
ns.dns                 IN A    10.96.0.10
kubernetes.default.svc IN A    10.96.0.1
kube-dns.kube-system.svc IN A  10.96.0.10
shop.default.svc       IN A    10.96.100.20
cart.default.svc       IN A    10.96.100.21
cart.default.svc       IN AAAA fd00:96::6421
`
	upstreamZone = `$ORIGIN example.org.
$TTL 300
@   IN SOA ns hostmaster 1 7200 1800 86400 300
@   IN NS  ns
ns  IN A   198.51.100.53
www IN A   203.0.113.80
`
	localAddress = "169.254.20.10"
)

// cluster is the throw-away node with what runs on it.
type cluster struct {
	*testutil.Node
	t    testutil.TB
	dir  string // everything that is written lies in it
	bin  string // where the products and tools were built
	keep bool
	ipv6 bool

	kubeDNS  *server
	upstream *server
	agent    *testutil.Process // nil until it was started
}

// server is a stock CoreDNS with its log of questions.
type server struct{ log string }

func (s *server) asked(name string) []question {
	text, _ := os.ReadFile(s.log) // absent: asked nothing yet
	return named(parseLog(string(text)), name)
}

func newCluster(t testutil.TB, dir, bin string, proxy testutil.ProxyMode, keep bool) *cluster {
	c := &cluster{t: t, dir: dir, bin: bin, keep: keep}
	_, err := os.Stat("/proc/sys/net/ipv6")
	c.ipv6 = err == nil
	families := testutil.IPv4
	if c.ipv6 {
		families = testutil.Dual
	}
	c.Node = testutil.NewNode(t, testutil.Options{Families: families, Proxy: proxy, External: true, NoDNS: true, Name: "demo"})
	c.note(c.Host, c.Neighbour, c.KubeDNS, c.ExternalNS)
	for _, d := range []string{"net.d", "cni-bin", "log", "zones", "pods", "kube-dns-configmap"} {
		c.must(os.MkdirAll(c.path(d), 0o755))
	}
	c.write("zones/cluster.local", clusterZone)
	c.write("zones/example.org", upstreamZone)
	c.upstream = c.coredns("upstream", c.ExternalNS, c.ExternalAddrs(), `example.org:53 {
    bind %[1]s
    log . "%[2]s"
    errors
    file %[3]s/zones/example.org
}
`)
	c.kubeDNS = c.coredns("kube-dns", c.KubeDNS, c.KubeDNSAddrs(), `cluster.local:53 {
    bind %[1]s
    log . "%[2]s"
    errors
    file %[3]s/zones/cluster.local
}
.:53 {
    bind %[1]s
    log . "%[2]s"
    errors
    forward . `+c.ExternalAddrs()[0].String()+`
}
`)
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) must(err error) {
	if err != nil {
		c.t.Fatalf("%v", err)
	}
}

func (c *cluster) write(name, text string) {
	c.must(os.WriteFile(c.path(name), []byte(text), 0o644))
}

// coredns starts a stock CoreDNS and waits until it answers.
func (c *cluster) coredns(name string, ns *testutil.NetNS, addrs []netip.Addr, corefile string) *server {
	var bind []string
	for _, a := range addrs {
		bind = append(bind, a.String())
	}
	file := name + ".corefile"
	c.write(file, fmt.Sprintf(corefile, strings.Join(bind, " "), logFormat, c.dir))
	s := &server{log: c.path("log/" + name)}
	process := c.start(ns, name, "tools/coredns", "-conf", c.path(file))
	testutil.Eventually(c.t, 20*time.Second, func() error {
		select {
		case <-process.Exited():
			c.t.Fatalf("%s ended at once:\n%s", name, c.logTail(name))
		default:
		}
		_, err := testutil.Ask(ns, netip.AddrPortFrom(addrs[0], 53), "ready.cluster.local", typeA, "udp", testutil.AskOptions{Timeout: 200 * time.Millisecond})
		return err
	})
	return s
}

// start runs one of the built programs in ns, with its output in a file. Only where the node is to be kept may it outlive us.
func (c *cluster) start(ns *testutil.NetNS, name, program string, args ...string) *testutil.Process {
	log, err := os.OpenFile(c.path("log/"+name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	c.must(err)
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), filepath.Join(c.bin, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if !c.keep {
		return ns.StartCmd(cmd)
	}
	process := ns.StartDetached(cmd)
	c.t.Cleanup(func() {
		if !isKept(c.dir) {
			process.Kill()
		}
	})
	return process
}

func (c *cluster) logTail(name string) string {
	text, _ := os.ReadFile(c.path("log/" + name))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// nodeConfig writes the agent's configuration. What detection would find on a real node is given: there is no kubelet.
func (c *cluster) nodeConfig() string {
	var b strings.Builder
	b.WriteString("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nclusterDomain: cluster.local\nredirects:\n")
	for _, a := range c.ClusterDNS() {
		fmt.Fprintf(&b, "- clusterDNS: %q\n", a)
	}
	fmt.Fprintf(&b, "localAddresses: [%q]\n", localAddress)
	fmt.Fprintf(&b, "upstreams:\n  external: [%q]\n", c.ExternalAddrs()[0])
	fmt.Fprintf(&b, "stateDir: %s\npersistDir: %s\nkubeDNSConfigMap: %s\n", c.stateDir(), c.path("lib"), c.path("kube-dns-configmap"))
	c.write("nodeconfig.yaml", b.String())
	return b.String()
}

func (c *cluster) stateDir() string   { return c.path("run") }
func (c *cluster) configFile() string { return c.path("nodeconfig.yaml") }
func (c *cluster) program(name string) string {
	return filepath.Join(c.bin, name)
}

// startAgent starts the agent and waits until it serves under its leases.
func (c *cluster) startAgent() time.Duration {
	begun := time.Now()
	c.agent = c.start(c.Host, "agent", "neardns-agent", "node", "--config", c.configFile())
	c.awaitReady()
	return time.Since(begun)
}

func (c *cluster) awaitReady() {
	testutil.Eventually(c.t, 20*time.Second, func() error {
		select {
		case <-c.agent.Exited():
			c.t.Fatalf("the agent ended:\n%s", c.logTail("agent"))
		default:
		}
		_, err := c.get("http://127.0.0.1:8080/readyz")
		if err != nil {
			return fmt.Errorf("%w; its log:\n%s", err, c.logTail("agent"))
		}
		return nil
	})
}

// get fetches a page from the node's own netns.
func (c *cluster) get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		c.Host.Do(func() {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, addr)
		})
		return conn, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := fmt.Fprint(&b, readAll(resp.Body)); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, resp.Status, b.String())
	}
	return b.String(), nil
}

// note records a namespace, so that `clean` knows whose processes are ours even where this process was killed.
func (c *cluster) note(all ...*testutil.NetNS) {
	f, err := os.OpenFile(c.path(namespacesFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	c.must(err)
	defer f.Close()
	for _, ns := range all {
		c.must(json.NewEncoder(f).Encode(namespace{ns.Path(), ns.Inode()}))
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
