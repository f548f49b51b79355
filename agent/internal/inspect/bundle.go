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

const (
	programTimeout = 10 * time.Second // for a program whose output is put into the bundle
	maxFiles       = 500              // files from one folder; a node has about a hundred pods
	maxLog         = 4 << 20          // bytes that are read from the end of a log
)

// logPaths are the patterns of log files: where the kubelet keeps the logs of neardns's containers, and where a program that runs without
// kubelet may log.
var logPaths = []string{"/var/log/pods/*_neardns*_*/*/*.log", "/var/log/neardns*.log"}

// sysctls lists the kernel settings in the bundle.
var sysctls = []string{"net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/route_localnet",
	"net/ipv6/conf/all/forwarding",
	"net/ipv6/conf/all/disable_ipv6", "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max",
	"net/bridge/bridge-nf-call-iptables", "net/core/rmem_max", "net/ipv4/ip_local_port_range", "kernel/osrelease"}

// Bundle returns the files for a bug report: the doctor's report, status, pods, metrics, configuration, CNI configuration, rules, links,
// state, logs and versions. Its manifest lists what could not be read, and what was left out because it is private or too large. configPath
// is the configuration file; "" for none.
func (in *Inspector) Bundle(ctx context.Context, report Report, version, configPath string) *bundle.Bundle {
	c := &collector{Inspector: in, Bundle: bundle.New(version, time.Now())}
	c.Put("doctor.txt", []byte(report.Text()), nil)
	c.views(ctx)
	c.configuration(configPath)
	c.folder("state", in.Conf.StateDir)
	c.folder("persist", in.Conf.PersistDir)
	c.folder("cni", in.CNIConf)
	c.network(ctx)
	c.logs()
	c.versions(ctx, version)
	// As Prometheus would read them now. Their labels have zones and namespaces, but no names that pods queried.
	if at := in.Conf.Listen.Metrics; at.IsValid() {
		text, _, err := Request(ctx, "tcp", at.String(), "/metrics")
		c.Put("metrics.txt", text, err)
	} else {
		c.Put("metrics.txt", nil, errors.New("listen.metrics is off"))
	}
	return c.Bundle
}

// collector reads from the node what belongs into a bundle, and adds it.
type collector struct {
	*Inspector
	*bundle.Bundle
}

func (c *collector) views(ctx context.Context) {
	s, err := c.Status(ctx)
	if err == nil {
		text, err := json.MarshalIndent(s, "", "  ")
		c.Put("status.json", text, err)
		c.Put("status.txt", []byte(s.Text(true)), nil)
	} else {
		c.Put("status.txt", nil, err)
	}
	views, noAgent := c.Pods(ctx)
	c.Put("pods.txt", []byte(PodsText(views)), nil)
	if noAgent != nil {
		c.Put("pods' counts", nil, noAgent)
	}
}

func (c *collector) configuration(path string) {
	if path != "" {
		text, err := c.ReadFile(path)
		c.Put("config/file.yaml", text, err)
	}
	c.Put("config/in-effect.yaml", []byte(c.Conf.Show()), nil)
	if c.Fault != nil {
		c.Put("config/fault.txt", []byte(c.Fault.Error()+"\n"), nil)
	}
	var text string
	p, up, err := plan.Read(c.Conf, c.ReadFile, "doctor")
	if err == nil {
		text, err = corefile.Render(p.Server.Config)
	}
	c.Put("config/Corefile", []byte(text), err)
	for _, r := range c.resolvConf(up) {
		text, err := c.ReadFile(r.path)
		c.Put("resolv"+r.path, text, err)
	}
}

// folder adds the regular files of a folder to the bundle, at most maxFiles, without the plugin's lock, temporary files and the snapshot of
// the cache.
func (c *collector) folder(name, path string) {
	root, err := os.OpenRoot(path)
	if err != nil {
		c.Put(name, nil, err)
		return
	}
	defer root.Close()
	found := 0
	err = fs.WalkDir(root.FS(), ".", func(at string, d fs.DirEntry, err error) error {
		in := filepath.Join(name, at)
		switch {
		case err != nil:
			return err
		case !d.Type().IsRegular(), d.Name() == nodestate.PluginLockName, strings.HasPrefix(d.Name(), nodestate.TempPrefix):
			return nil
		case d.Name() == nodestate.CacheSnapshotName:
			c.Put(in, nil, errors.New("left out: it has the names that pods queried, and the answers"))
			return nil
		case found == maxFiles:
			return fmt.Errorf("the folder has more than %d files", maxFiles)
		}
		found++
		text, err := root.ReadFile(at)
		if strings.Contains(d.Name(), ".log") {
			c.PutLog(in, text, err)
		} else if !errors.Is(err, fs.ErrNotExist) { // a pod's file may be removed meanwhile
			c.Put(in, text, err)
		}
		return nil
	})
	if err != nil {
		c.Put(name, nil, err)
	}
}

// network adds the output of programs that print rules and links, and what the slim image can read without these programs.
func (c *collector) network(ctx context.Context) {
	for _, args := range [][]string{{"nft", "list", "ruleset"}, {"iptables-nft-save", "-c"}, {"ip6tables-nft-save", "-c"},
		{"iptables-legacy-save", "-c"}, {"ip6tables-legacy-save", "-c"}, {"ip", "-d", "address"}, {"ip", "rule"}, {"ip", "-6", "rule"},
		{"ip", "route", "show", "table", "all"}} {
		folder := "rules/"
		if args[0] == "ip" {
			folder = "network/"
		}
		text, err := output(ctx, args...)
		c.Put(folder+strings.Join(args, "-")+".txt", text, err)
	}
	links, err := net.Interfaces()
	var b bytes.Buffer
	for _, l := range links {
		addrs, err := l.Addrs()
		fmt.Fprintln(&b, l.Index, l.Name, "mtu", l.MTU, l.HardwareAddr, l.Flags, addrs, errors.Join(err))
	}
	c.Put("network/links.txt", b.Bytes(), err)
	for _, name := range []string{"route", "ipv6_route", "dev", "udp", "udp6", "tcp", "tcp6", "snmp", "snmp6", "netstat"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		c.Put("network/proc-net-"+name, text, err)
	}
	var settings bytes.Buffer
	for _, name := range sysctls {
		appendText(&settings, name+": ", readOr("/proc/sys/"+name))
	}
	c.Put("network/sysctl.txt", settings.Bytes(), nil)
}

func (c *collector) logs() {
	found := false
	for _, pattern := range logPaths {
		paths, _ := filepath.Glob(pattern) // only a bad pattern is an error
		for _, path := range paths {
			found = true
			text, err := tail(path)
			c.PutLog("log"+path, text, err)
		}
	}
	if !found {
		c.Put("log", nil, fmt.Errorf("no log of the agent is visible here (%s): add `kubectl logs`, or the journal's",
			strings.Join(logPaths, ", ")))
	}
}

// tail returns the last maxLog bytes of a file.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxLog), maxLog))
}

func (c *collector) versions(ctx context.Context, version string) {
	var b bytes.Buffer
	appendText(&b, "neardns-agent ", []byte(version))
	for _, args := range [][]string{{filepath.Join(c.CNIBin, "neardns"), "--version"}, {"neardns-install", "--version"}, {"nft", "--version"},
		{"iptables-nft", "--version"}, {"iptables-legacy", "--version"}} {
		text, err := output(ctx, args...)
		if err != nil {
			text = []byte(err.Error())
		}
		appendText(&b, strings.Join(args, " ")+": ", text)
	}
	for _, path := range []string{"/proc/version", "/etc/os-release", "/proc/self/cgroup", "/proc/meminfo"} {
		appendText(&b, "\n"+path+":\n", readOr(path))
	}
	c.Put("versions.txt", b.Bytes(), nil)
}

func appendText(b *bytes.Buffer, name string, text []byte) {
	fmt.Fprintf(b, "%s%s\n", name, bytes.TrimSpace(text))
}

// readOr returns the text of a file, or of the error.
func readOr(path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// output returns what a program prints to standard output.
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
