package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/inspect/bundle"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/pkg/nodestate"
)

// programTimeout is what a program that prints rules or its version may take.
const programTimeout = 10 * time.Second

// logPaths are where the kubelet keeps what containers of ours said, and where people who run the programs without it may.
var logPaths = []string{"/var/log/pods/*_neardns*_*/*/*.log", "/var/log/neardns*.log"}

// sysctls matter to the ways of packets.
var sysctls = []string{"net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/route_localnet",
	"net/ipv6/conf/all/forwarding",
	"net/ipv6/conf/all/disable_ipv6", "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max",
	"net/bridge/bridge-nf-call-iptables",
	"net/core/rmem_max", "net/ipv4/ip_local_port_range", "kernel/osrelease"}

// Bundle packs what a bug report needs: report, status and pods, configuration, rules, links, state, logs and versions. What cannot be
// looked at is noted in it, and so is what is private. configPath is the configuration's file; "" for none.
func (in *Inspector) Bundle(ctx context.Context, report Report, version, configPath string) *bundle.Bundle {
	b := bundle.New(version, time.Now())
	b.Add("doctor.txt", []byte(report.Text()))
	c := &collector{Inspector: in, Bundle: b}
	c.views(ctx)
	c.configuration(configPath)
	c.folder("state", in.Conf.StateDir)
	c.folder("persist", in.Conf.PersistDir)
	c.folder("cni", in.CNIConf)
	c.rules(ctx)
	c.network()
	c.logs()
	c.versions(ctx, version)
	c.metrics(ctx)
	return b
}

// collector puts what it finds into a bundle.
type collector struct {
	*Inspector
	*bundle.Bundle
}

// have adds a text, or notes why there is none.
func (c *collector) have(name string, text []byte, err error) {
	if err != nil {
		c.Lacks(name, err.Error())
		return
	}
	c.Add(name, text)
}

func (c *collector) views(ctx context.Context) {
	s, err := c.Status(ctx)
	if err != nil {
		c.Lacks("status.txt", err.Error())
	} else {
		c.Add("status.txt", []byte(s.Text()))
		text, err := json.MarshalIndent(s, "", "  ")
		c.have("status.json", text, err)
	}
	views, noAgent := c.Pods(ctx)
	c.Add("pods.txt", []byte(PodsText(views)))
	if noAgent != nil {
		c.Lacks("pods' counts", noAgent.Error())
	}
}

func (c *collector) configuration(path string) {
	if path != "" {
		text, err := c.ReadFile(path)
		c.have("config/file.yaml", text, err)
	}
	c.Add("config/in-effect.yaml", []byte(c.Conf.Show()))
	if c.Fault != nil {
		c.Add("config/fault.txt", []byte(c.Fault.Error()+"\n"))
	}
	p, up, err := plan.Read(c.Conf, c.ReadFile, "doctor")
	if err != nil {
		c.Lacks("config/Corefile", err.Error())
		return
	}
	text, err := corefile.Render(p.Server.Config)
	c.have("config/Corefile", []byte(text), err)
	for _, r := range c.resolvConf(up) {
		text, err := c.ReadFile(r.path)
		c.have("resolv"+r.path, text, err)
	}
}

// folder adds the regular files of a folder of ours or the runtime's. The cache's snapshot holds what pods asked for.
func (c *collector) folder(name, path string) {
	root, err := os.OpenRoot(path)
	if err != nil {
		c.Lacks(name, err.Error())
		return
	}
	defer root.Close()
	found := 0
	err = fs.WalkDir(root.FS(), ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch in := filepath.Join(name, at); {
		case !d.Type().IsRegular(), d.Name() == nodestate.PluginLockName, strings.HasPrefix(d.Name(), nodestate.TempPrefix):
		case d.Name() == nodestate.CacheSnapshotName:
			c.Lacks(in, "left out: it has the names that pods asked for, and the answers")
		case found == maxFiles:
			c.Lacks(name, fmt.Sprintf("only the first %d files are there", maxFiles))
			return filepath.SkipAll
		default:
			found++
			text, err := root.ReadFile(at)
			if strings.Contains(d.Name(), ".log") && err == nil {
				c.AddLog(in, text)
			} else if !errors.Is(err, fs.ErrNotExist) { // a pod's file may go meanwhile
				c.have(in, text, err)
			}
		}
		return nil
	})
	if err != nil {
		c.Lacks(name, err.Error())
	}
}

// maxFiles bounds the files of one folder: a node has about a hundred pods.
const maxFiles = 500

func (c *collector) rules(ctx context.Context) {
	for _, args := range [][]string{{"nft", "list", "ruleset"}, {"iptables-nft-save", "-c"}, {"ip6tables-nft-save", "-c"},
		{"iptables-legacy-save", "-c"}, {"ip6tables-legacy-save", "-c"}, {"ip", "-d", "address"}, {"ip", "rule"}, {"ip", "-6", "rule"},
		{"ip", "route", "show", "table", "all"}} {
		folder := "rules/"
		if args[0] == "ip" {
			folder = "network/"
		}
		text, err := output(ctx, args...)
		c.have(folder+strings.Join(args, "-")+".txt", text, err)
	}
}

// output is what a program prints.
func output(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the names are literals, or the plugin in the folder that root names
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(strings.TrimSpace(errs.String())))
	}
	return text, nil
}

// network needs no program: the slim image has none.
func (c *collector) network() {
	ifs, err := net.Interfaces()
	var b strings.Builder
	for _, i := range ifs {
		addrs, err := i.Addrs()
		fmt.Fprintf(&b, "%d %s mtu %d %s %s %v", i.Index, i.Name, i.MTU, i.HardwareAddr, i.Flags, addrs)
		if err != nil {
			fmt.Fprintf(&b, " (%v)", err)
		}
		b.WriteString("\n")
	}
	c.have("network/links.txt", []byte(b.String()), err)
	for _, name := range []string{"route", "ipv6_route", "dev", "udp", "udp6", "tcp", "tcp6", "snmp", "snmp6", "netstat"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		c.have("network/proc-net-"+name, text, err)
	}
	b.Reset()
	for _, name := range sysctls {
		text, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s: %s\n", name, bytes.TrimSpace(text))
	}
	c.Add("network/sysctl.txt", []byte(b.String()))
}

func (c *collector) logs() {
	found := 0
	for _, pattern := range logPaths {
		paths, _ := filepath.Glob(pattern) // an error is a bad pattern
		for _, path := range paths {
			found++
			text, err := tail(path)
			if err != nil {
				c.Lacks("log"+path, err.Error())
				continue
			}
			c.AddLog("log"+path, text)
		}
	}
	if found == 0 {
		c.Lacks("log", "no log of the agent is to be seen from here ("+strings.Join(logPaths, ", ")+"): add `kubectl logs`, or the journal's")
	}
}

// tail is the end of a file that may be large.
func tail(path string) ([]byte, error) {
	const most = 4 << 20
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, most))
}

func (c *collector) versions(ctx context.Context, version string) {
	var b strings.Builder
	fmt.Fprintf(&b, "neardns-agent %s\n", version)
	for _, args := range [][]string{{filepath.Join(c.CNIBin, "neardns"), "--version"}, {"neardns-install", "--version"}, {"nft", "--version"},
		{"iptables-nft", "--version"}, {"iptables-legacy", "--version"}} {
		text, err := output(ctx, args...)
		if err != nil {
			text = []byte(strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(args, " "), bytes.TrimSpace(text))
	}
	for _, path := range []string{"/proc/version", "/etc/os-release", "/proc/self/cgroup", "/proc/meminfo"} {
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error() + "\n")
		}
		fmt.Fprintf(&b, "\n%s:\n%s", path, text)
	}
	c.Add("versions.txt", []byte(b.String()))
}

// metrics are what a Prometheus would read now. Their labels name zones and namespaces, and nothing that was asked for.
func (c *collector) metrics(ctx context.Context) {
	const name = "metrics.txt"
	if !c.Conf.Listen.Metrics.IsValid() {
		c.Lacks(name, "listen.metrics is empty")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Conf.Listen.Metrics.String()+"/metrics", nil)
	if err != nil {
		c.Lacks(name, err.Error())
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		c.Lacks(name, err.Error())
		return
	}
	defer resp.Body.Close() //nolint:errcheck // read to the end
	text, err := io.ReadAll(resp.Body)
	c.have(name, text, err)
}
