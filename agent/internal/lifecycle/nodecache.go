package lifecycle

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node/link"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
)

// NodeCache runs the agent in node-cache mode until ctx ends: in place of NodeLocal DNSCache's node-cache, with its flags and its
// Corefile template instead of a NodeConfig. Clients send queries to the addresses of -localip. There is no CNI plugin, and so no
// steering address.
func NodeCache(ctx context.Context, e Env, opts nodecache.Options) error {
	answer, err := opts.Resolve(e.LookupEnv, templateUpstream(opts, e.ReadFile))
	if err != nil {
		return &ConfigError{err}
	}
	level := new(slog.LevelVar)
	log := telemetry.NewLogger(e.Stderr, level, opts.JSONLog)
	if !opts.Quiet {
		for _, note := range slices.Concat(opts.Notes, answer.Notes) {
			log.Info("note on the command-line flags", "note", note)
		}
	}
	process.LimitMemory(log, e.LookupEnv)
	if err := os.MkdirAll(nodestate.DefaultStateDir, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w: mount one there that can be written, such as an emptyDir", err)
	}
	c := &nodeCache{env: e, opts: opts, answer: answer, log: log, faults: nodecache.NewFaults(),
		instance: newInstance(), linked: make(chan struct{})}
	a := &agent{env: e, log: log, level: level, conf: c.defaults(), instance: c.instance}
	a.role = role{read: c.read, derive: c.derive, checked: c.partChecked, serve: c.serve, cleanUp: c.cleanUp}
	pod, _ := e.LookupEnv("POD_NAME") // used only in messages
	a.claim = handover.Claim{Instance: a.instance, PID: os.Getpid(), Pod: pod, Version: e.Version, Since: time.Now()}
	log.Info("starting in node-cache mode", "version", e.Version, "instance", a.instance,
		"addr", steer.JoinAddrs(opts.LocalIPs, ","), "upstream",
		answer.Upstream)
	return a.runUntilEnd(ctx)
}

// templateUpstream returns the address of kube-dns that the Corefile template names literally, for environments without a variable that
// has the address. It returns the zero Addr if the template has the placeholder instead, or has a fault, which is reported when the
// template is served.
func templateUpstream(opts nodecache.Options, readFile func(string) ([]byte, error)) netip.Addr {
	template, err := readFile(opts.Template)
	if err != nil || strings.Contains(string(template), nodecache.ClusterDNS) {
		return netip.Addr{}
	}
	fill := nodecache.Fill{Locals: opts.LocalIPs, External: plan.NodeResolvConf, Prometheus: opts.Prometheus, Domain: "cluster.local"}
	text, _, err := fill.Corefile(string(template))
	if err != nil {
		return netip.Addr{}
	}
	survey, err := nodecache.ReadCorefile(opts.Template, text, opts.LocalIPs)
	if err != nil {
		return netip.Addr{}
	}
	return survey.Forward[nodecache.Domain(survey.Zones)]
}

// nodeCache is the state that the role `nodecache` has in addition to the agent's.
type nodeCache struct {
	env      Env
	opts     nodecache.Options
	answer   nodecache.Answer
	log      *slog.Logger
	faults   *nodecache.Faults
	instance string
	linked   chan struct{} // closed after the first attempt to make the link and its addresses, even if it failed
	once     sync.Once     // closes linked

	mu     sync.Mutex // guards the fields below, and is held while follow runs
	loaded bool       // a template was valid at least once
	survey nodecache.Survey
	follow func() // starts and stops HTTP endpoints as flags and template now name them; nil until serve is called
}

// read returns the parts of a NodeConfig that the agent uses. They come from flags, so every call returns the same.
func (c *nodeCache) read() (*config.Node, error) { return c.defaults(), nil }

func (c *nodeCache) defaults() *config.Node {
	conf := config.Default()
	conf.LocalAddresses = c.opts.LocalIPs
	conf.KubeDNSConfigMap = c.opts.ConfigMap
	conf.Link.Name = c.opts.Interface
	conf.Corefile = c.opts.Template
	conf.Listen = config.Listen{} // the template and the flags name the endpoints
	conf.Backend = c.opts.Backend
	conf.ResolvConf.NRI = "" // without the plugin, no pod has settings that NRI would write
	if c.opts.NoFastPath {
		conf.FastPath = config.FastPathOff
	}
	if c.opts.LimitMemoryMiB > 0 {
		conf.Cache.MemoryMiB = c.opts.LimitMemoryMiB
	}
	return &conf
}

// derive makes the plan from the template, the files that it imports, and the upstreams. Until these were without a fault once, derive
// never fails: if they have one, the plan is Unserved, but the switch still sends pods' queries to kube-dns.
func (c *nodeCache) derive(conf *config.Node) (plan.Plan, upstream.Upstreams, error) {
	t, survey, up, err := c.template()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Fault = c.faults.Count(nodecache.FaultConfigmap, err)
	p := plan.OfNodeCache(c.opts, c.answer, t, conf, c.instance)
	if err != nil {
		if !c.loaded {
			err = nil
		}
		return p, up, err
	}
	c.loaded, c.survey = true, survey
	c.write(t.Text)
	if c.follow != nil {
		c.follow()
	}
	return p, up, nil
}

// template fills in the Corefile template. If a step after the search for imported files fails, up.Files still has these files: the agent
// watches them, because a change may remove the fault.
func (c *nodeCache) template() (t plan.Template, survey nodecache.Survey, up upstream.Upstreams, err error) {
	name := c.opts.Template
	template, err := c.env.ReadFile(name)
	if err != nil {
		return t, survey, up, fmt.Errorf("read the template: %w: mount it there, or name another with -basecorefile", err)
	}
	fill := nodecache.Fill{Locals: c.opts.LocalIPs, Upstream: c.answer.Upstream, Prometheus: c.opts.Prometheus, Domain: "cluster.local"}
	text, _, err := fill.Corefile(string(template))
	if err != nil {
		return t, survey, up, fmt.Errorf("%s: %w", name, err)
	}
	text, imported := c.imports(text)
	up.Files = imported
	if survey, err = nodecache.ReadCorefile(name, text, c.opts.LocalIPs); err != nil {
		return t, survey, up, err
	}
	domain := nodecache.Domain(survey.Zones)
	up, err = upstream.Resolve(plan.NodeCacheUpstreams(c.opts, c.answer, domain, c.env.ReadFile))
	up.Files = append(up.Files, imported...)
	if err != nil {
		return t, survey, up, err
	}
	fill.External = nameserver.Join(up.External)
	fill.Chosen = !up.Found && len(up.External) > 0
	text, notes, err := fill.Corefile(string(template))
	if err != nil {
		return t, survey, up, fmt.Errorf("%s: %w", name, err)
	}
	text, _ = c.imports(text)
	blocks, more := nodecache.Stubs(up.Stub, survey.Zones)
	up.Notes = slices.Concat(up.Notes, notes, more)
	t = plan.Template{Text: text + blocks, Domain: domain, Warnings: up.Warnings}
	if _, err := corefile.Render(plan.OfNodeCache(c.opts, c.answer, t, c.defaults(), "").Server.Config); err != nil {
		return plan.Template{}, survey, up, err
	}
	return t, survey, up, nil
}

// imports makes the import paths of a Corefile absolute, and lists what to watch: the imported files, and the folders in which more may
// appear. It appends a comment with each file's hash, so that the Corefile's text changes when an imported file does.
func (c *nodeCache) imports(text string) (absolute string, files []string) {
	at := c.opts.Corefile
	if at == "" {
		at = c.opts.Template
	}
	absolute, patterns := nodecache.Imports(text, filepath.Dir(at))
	for _, p := range patterns {
		matches, _ := filepath.Glob(p) // CoreDNS's parser reports a malformed pattern
		for _, m := range matches {
			content, _ := c.env.ReadFile(m) // CoreDNS's parser reports an unreadable file
			absolute += fmt.Sprintf("\n# imported: %s, %x\n", m, sha256.Sum256(content))
		}
		files = append(append(files, matches...), filepath.Dir(p)+"/")
	}
	return absolute, files
}

// write writes the filled-in template to the file of -conf or -corefile, for people to read. The agent does not read that file.
func (c *nodeCache) write(text string) {
	if c.opts.Corefile == "" {
		return
	}
	if err := atomicfile.Write(c.opts.Corefile, []byte(text), atomicfile.Options{Mode: 0o644, Folder: true}); err != nil {
		c.log.Warn("cannot write the filled-in Corefile template to its file, which only people read", "err", err)
	}
}

// cleanUp implements role.cleanUp. It removes the link if the plan has it as temporary. The switch always stays, because pods send
// queries to the agent's addresses.
func (c *nodeCache) cleanUp(p plan.Plan) error {
	if !p.Link.Temporary {
		return nil
	}
	if err := link.Remove(link.Config{Name: p.Link.Name}); err != nil {
		return err
	}
	c.log.Info("interface removed; the packet rules stay and send pods' queries to kube-dns, or to node-cache if it runs", "link", p.Link.Name)
	return nil
}
