package nodecache

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are node-cache's flags, read and checked.
type Options struct {
	Link
	Endpoints
	LocalIPs      []netip.Addr
	SetupIptables bool
	Template      string        // -basecorefile
	Corefile      string        // file to write the filled-in template to; "" for none
	ConfigMap     string        // folder of the kube-dns ConfigMap; it need not exist
	Check         time.Duration // -syncinterval
	// UpstreamService is the Service of kube-dns, in this pod's namespace, to which queries for the cluster's names are forwarded.
	UpstreamService string
	// Fallback has the addresses of kube-dns to use if the agent does not answer. They precede the Services' addresses in the pod's
	// environment, which may have only one IP family. node-cache has no such flag.
	Fallback       []netip.Addr
	Backend        string // back end of the packet rules; node-cache has no such flag
	JSONLog        bool
	Quiet          bool
	ShowPlugins    bool
	ShowVersion    bool
	Notes          []string // for the log: which flags were corrected or have no effect
	LimitMemoryMiB int      // maximum size of the cache; 0: the agent's default
	NoFastPath     bool     // hits are answered by CoreDNS's plugin chain, not by the fast path
}

// Link has the flags about the interface with the agent's addresses.
type Link struct {
	SetupInterface bool
	Interface      string
	SkipTeardown   bool // the interface stays when the agent ends
}

// Endpoints has the flags about the HTTP addresses of metrics and health.
type Endpoints struct {
	SetupMetrics string // -metrics-listen-address, host:port; "" for none
	Prometheus   string // -prometheus-listen-address, for the template
	HealthPort   uint16 // port of /health. With SetupIptables, conntrack does not track the node's connections to it
}

// DefaultConfigMap is the folder where node-cache's manifest mounts the kube-dns ConfigMap.
const DefaultConfigMap = "/etc/kube-dns"

// Limits of -syncinterval.
const (
	minCheck = time.Second
	maxCheck = time.Hour
)

// rawFlags has the flags that Parse converts, checks or ignores.
type rawFlags struct {
	localIP, fallback, interval, health, port, corefile, conf, logFormat, initialDelay string
	reload, ebtables, tls                                                              bool
}

// Parse parses node-cache's command line. If it returns flag.ErrHelp, it has written the list of flags to usage.
func Parse(args []string, usage io.Writer) (Options, error) {
	var o Options
	var g rawFlags
	fs := flags(&o, &g)
	fs.SetOutput(io.Discard) // the error has the fault
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(usage)
			fmt.Fprintln(usage, "neardns-agent nodecache: a DNS cache in place of NodeLocal DNSCache's node-cache, with its flags "+
				"and its Corefile template")
			fs.PrintDefaults()
			return o, err
		}
		return o, fmt.Errorf("%w: `neardns-agent nodecache -h` lists the flags and their values", err)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: node-cache takes flags alone", fs.Arg(0))
	}
	if o.ShowPlugins || o.ShowVersion {
		return o, nil
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	var errs []error
	o.LocalIPs, errs = addresses("-localip", g.localIP, true)
	var faults []error
	o.Fallback, faults = addresses("-fallback", g.fallback, false)
	errs = append(errs, faults...)
	if !isInterface(o.Interface) {
		errs = append(errs, fmt.Errorf("-interfacename %q: not a name for an interface: write 1 to 15 letters without space, slash "+
			"or colon", o.Interface))
	}
	if g.port != "53" {
		errs = append(errs, fmt.Errorf("-dns.port %s: only port 53 is served, since only queries to it have a fallback: remove the flag", g.port))
	}
	port, err := strconv.ParseUint(g.health, 10, 16)
	if err != nil || port == 0 {
		errs = append(errs, fmt.Errorf("-health-port %q: write a port number from 1 to 65535", g.health))
	}
	o.HealthPort = uint16(port)
	if o.LimitMemoryMiB < 0 {
		errs = append(errs, fmt.Errorf("-cachememory %d: write a number of mebibytes, or 0 for the default", o.LimitMemoryMiB))
	}
	if g.logFormat != "text" && g.logFormat != "json" {
		errs = append(errs, fmt.Errorf("-log-format %q: write text or json", g.logFormat))
	}
	o.JSONLog = g.logFormat == "json"
	errs = append(errs, o.interval(g.interval))
	for _, of := range []struct{ flag, address string }{
		{"-metrics-listen-address", o.SetupMetrics}, {"-prometheus-listen-address", o.Prometheus},
	} {
		if _, _, err := net.SplitHostPort(of.address); of.address != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s %q: write host:port, such as :9253", of.flag, of.address))
		}
	}
	errs = append(errs, o.checkBackend())
	o.Corefile = g.conf
	if !set["conf"] {
		o.Corefile = g.corefile
	}
	o.note(g, set)
	return o, errors.Join(errs...)
}

// checkBackend checks -backend together with -setupiptables=false, which forbids neardns's rules in iptables: auto then becomes nftables.
func (o *Options) checkBackend() error {
	switch {
	case !slices.Contains(backends(), o.Backend):
		return fmt.Errorf("-backend %q: write one of %s", o.Backend, strings.Join(backends(), ", "))
	case o.SetupIptables, o.Backend == "nftables":
	case o.Backend == "auto":
		o.Backend = "nftables"
	default:
		return fmt.Errorf("-backend %s writes its rules into iptables, which -setupiptables=false forbids: remove one of the two", o.Backend)
	}
	return nil
}

// isInterface reports whether the kernel accepts a name for a network interface, by the same rules as dev_valid_name in net/core/dev.c.
func isInterface(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\v\f\r")
}

// backends returns the values of -backend, which are those of NodeConfig's backend.
func backends() []string {
	return []string{"auto", "nftables", "iptables", "iptables-nft", "iptables-legacy"}
}

func flags(o *Options, g *rawFlags) *flag.FlagSet {
	fs := flag.NewFlagSet("nodecache", flag.ContinueOnError)
	fs.Usage = func() {}
	// Flags of node-cache, with node-cache's defaults.
	fs.StringVar(&g.localIP, "localip", "", "IP `ADDRESSES` at which to serve DNS, separated by commas; IPv4 and IPv6")
	fs.BoolVar(&o.SetupInterface, "setupinterface", true, "make the network interface and add the -localip addresses to it")
	fs.StringVar(&o.Interface, "interfacename", "nodelocaldns", "`NAME` of the network interface with the -localip addresses")
	fs.StringVar(&g.interval, "syncinterval", "60", "`SECONDS`, or a duration such as 1m, between two full checks of interface "+
		"and rules; a change that the agent notices is repaired at once")
	fs.StringVar(&o.SetupMetrics, "metrics-listen-address", "0.0.0.0:9353", "`HOST:PORT` of a second endpoint with the same metrics")
	fs.StringVar(&o.Prometheus, "prometheus-listen-address", ":9253", "`HOST:PORT` that replaces __PILLAR__PROMETHEUS__ENDPOINT__ in "+
		"the Corefile template")
	fs.BoolVar(&o.SetupIptables, "setupiptables", true, "false: write no iptables rules; the packet rules are then in nftables, "+
		"and the agent ends with an error if the kernel lacks nf_tables")
	fs.StringVar(&o.Template, "basecorefile", "/etc/coredns/Corefile.base", "`FILE` with the Corefile template")
	fs.StringVar(&g.corefile, "corefile", "/etc/Corefile", "`FILE` to write the filled-in Corefile template to, unless -conf is set")
	fs.StringVar(&o.ConfigMap, "kubednscm", DefaultConfigMap, "`FOLDER` where the kube-dns ConfigMap is mounted; it may be absent")
	fs.StringVar(&o.UpstreamService, "upstreamsvc", "kube-dns", "`NAME` of the Service, in this pod's namespace, to forward queries "+
		"for the cluster's names to")
	fs.StringVar(&g.health, "health-port", "8080", "`PORT` of the health endpoint; with -setupiptables, conntrack does not track "+
		"the node's connections to it; the template's health line must name the same port")
	fs.BoolVar(&o.SkipTeardown, "skipteardown", false, "keep the network interface when the agent ends; the packet rules always stay")
	fs.BoolVar(&g.reload, "reloadwithsignal", false, "no effect: the agent always reloads when a file changes, and at SIGUSR1")
	fs.BoolVar(&g.tls, "tls-enabled", false, "true: do not serve -metrics-listen-address; the agent serves no metrics over TLS")
	for _, name := range []string{"cert-file", "private-key-file", "client-auth-type", "client-ca-file", "min-version"} {
		fs.String("tls-"+name, "", "no effect")
	}
	// Flags of earlier releases of node-cache.
	fs.StringVar(&g.initialDelay, "initialdelay", "", "no effect: the packet rules exist before the first query")
	fs.BoolVar(&g.ebtables, "setupebtables", false, "no effect")
	// Flags of CoreDNS.
	fs.StringVar(&g.conf, "conf", "", "`FILE` to write the filled-in Corefile template to")
	fs.StringVar(&g.port, "dns.port", "53", "`PORT` at which to serve DNS; only 53 is possible")
	fs.StringVar(&g.port, "p", "53", "`PORT` at which to serve DNS, the same as -dns.port")
	fs.String("pidfile", "", "no effect: no file is written")
	fs.StringVar(&g.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	fs.BoolVar(&o.Quiet, "quiet", false, "do not log flags that were corrected or have no effect")
	fs.BoolVar(&o.ShowPlugins, "plugins", false, "list the plugins that a Corefile may use, and exit")
	fs.BoolVar(&o.ShowVersion, "version", false, "print the version, and exit")
	// Flags that only neardns has.
	fs.StringVar(&g.fallback, "fallback", "", "kube-dns `ADDRESSES`, comma-separated, that answer if the agent does not, instead of "+
		"the Service address in this pod's environment; for example for an IP family that has none there")
	fs.StringVar(&o.Backend, "backend", "auto", "`NAME` of the back end of the packet rules: "+strings.Join(backends(), ", "))
	fs.BoolVar(&o.NoFastPath, "nofastpath", false, "answer cache hits through CoreDNS's plugins, as all other queries, not by the fast path")
	fs.IntVar(&o.LimitMemoryMiB, "cachememory", 0, "maximum size of the cache in `MEBIBYTES`, for all server blocks together (default 32)")
	return fs
}

// note records notes for the log: which flags were corrected, and which have no effect.
func (o *Options) note(g rawFlags, set map[string]bool) {
	add := func(format string, args ...any) { o.Notes = append(o.Notes, fmt.Sprintf(format, args...)) }
	switch {
	case set["corefile"] && set["conf"]:
		add("-corefile %s has no effect with -conf %s", g.corefile, g.conf)
	case set["corefile"]:
		add("-corefile: the filled-in template is written to %s (node-cache ignores the flag)", g.corefile)
	}
	four, six := false, false
	for _, a := range o.LocalIPs {
		four, six = four || a.Is4(), six || a.Is6()
	}
	if four && six {
		add("-localip has both families (node-cache up to 1.26 refuses that): both are served")
	}
	if set["reloadwithsignal"] {
		add("-reloadwithsignal has no effect: changed files take effect at once, and at SIGUSR1")
	}
	if g.ebtables {
		add("-setupebtables has no effect: the host's packet rules also see bridged packets to its addresses")
	}
	if set["initialdelay"] {
		add("-initialdelay has no effect: the host's packet rules exist before the first query")
	}
	if set["pidfile"] {
		add("-pidfile has no effect: no file is written; the health endpoint shows that the agent serves")
	}
	if g.tls {
		o.SetupMetrics = ""
		add("-tls-enabled: the agent serves no metrics over TLS, and so none at -metrics-listen-address: have a TLS proxy read " +
			"-prometheus-listen-address, or remove the flag")
	}
	if !o.SetupIptables {
		add("-setupiptables=false: iptables stays as it is. The packet rules are an nftables table, which sends queries to kube-dns if " +
			"this agent does not answer; a kernel without nf_tables needs iptables for it")
	}
}

// interval parses -syncinterval. node-cache parses a duration and multiplies it by a second, so that a minute must be written as 60ns:
// 60s overflows, and 60 is refused.
func (o *Options) interval(text string) error {
	seconds, err := strconv.ParseUint(text, 10, 31)
	d := time.Duration(seconds) * time.Second //nolint:gosec // 31 bits
	note := ""
	if err != nil {
		d, err = time.ParseDuration(text)
		switch {
		case err != nil:
			return fmt.Errorf("-syncinterval %q: write seconds, such as 60, or a duration, such as 1m", text)
		case d < time.Millisecond: // too short to be meant
			d *= time.Second
			note = fmt.Sprintf("-syncinterval %s is read as %s, as node-cache does", text, d)
		default:
			note = fmt.Sprintf("-syncinterval %s is %s (node-cache multiplies it by a billion)", text, d)
		}
	}
	if d < minCheck || d > maxCheck {
		return fmt.Errorf("-syncinterval %s: write %s to %s", text, minCheck, maxCheck)
	}
	if note != "" {
		o.Notes = append(o.Notes, note)
	}
	o.Check = d
	return nil
}

// addresses reads a list of addresses.
func addresses(flag, text string, needed bool) (out []netip.Addr, errs []error) {
	if strings.TrimSpace(text) == "" {
		if needed {
			errs = append(errs, fmt.Errorf("%s names no address: write the one that pods query, such as 169.254.20.10", flag))
		}
		return nil, errs
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		a, err := netip.ParseAddr(part)
		switch {
		case part == "" && needed:
			// The manifest's instructions tell users to remove ",__PILLAR__DNS__SERVER__". Accept a comma that is left.
			continue
		case strings.Contains(part, "__PILLAR__"):
			errs = append(errs, fmt.Errorf("%s has the placeholder %s: %w", flag, part, errPlaceholder))
		case err != nil || a.Zone() != "":
			errs = append(errs, fmt.Errorf("%s %q: %q is not an IP address: write addresses, separated by commas, without port or "+
				"interface", flag, text, part))
		default:
			out = append(out, a.Unmap())
		}
	}
	return out, errs
}
