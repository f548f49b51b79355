//go:build resolvers

package steering

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/testutil"
)

// corpusNames are looked up: each kind of end that a walk of the search list can have, and some that it comes by.
var corpusNames = []string{"web", "web.default", "db.data", "www.example.com", "v4.example.com", "v6.example.com", "cdn.example.com", "nodata.example.com",
	"loop.example.com", "fails.example.com", "half.example.com", "wiki", "empty", "broken", "a.wild.example.com", "x.corp.example.com",
	"nowhere", "nowhere.example.com", "web.default.svc.cluster.local", "gone.default.svc.cluster.local"}

// The programs of these tests are Debian's; `make test-resolvers` fetches them. resolved is unpacked, since its package would change the
// machine's own resolv.conf.
const envResolved = "NEARDNS_RESOLVED"

// stubs are two pods, of which one queries the cache and one kube-dns, with the same settings.
type stubs struct {
	n               *node
	steered, direct *pod
	kernel          bool // answers hits
}

// byLevel runs a test with hits that the agent answers, and with hits that the kernel does, who must have answered some then.
func byLevel(t *testing.T, test func(t *testing.T, s *stubs)) {
	for _, level := range []string{"agent", "kernel"} {
		t.Run(level, func(t *testing.T) {
			s := newStubs(t, level == "kernel")
			test(t, s)
			if s.kernel {
				answered := s.n.kernelAnswers()
				if answered == 0 {
					t.Error("the kernel answered nothing")
				}
			}
		})
	}
}

func newStubs(t *testing.T, kernel bool) *stubs {
	t.Helper()
	settings := setup{
		families: testutil.IPv4, searches: []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"},
		config: "cache: {negativeTTL: 60s}\n", // denials are kept however slow the machine is
	}
	if kernel {
		needBPF(t)
		settings.install = true
		settings.config += "upstreams: {external: []}\n"
	}
	n, steered := corpusNode(t, settings)
	if kernel {
		n.wantInKernel(1, 0)
	}
	n.DNS.Behave(testutil.Behaviour{Handler: answerEDNS})
	return &stubs{n: n, steered: steered, direct: n.addPod(optOut), kernel: kernel}
}

// answerEDNS is kube-dns's answer with what RFC 6891 wants of a server.
func answerEDNS(q testutil.Question) *dns.Msg {
	m, o := answerCorpus(q), q.Msg.IsEdns0()
	switch {
	case o == nil:
		return m
	case o.Version() != 0:
		m = new(dns.Msg).SetRcode(q.Msg, dns.RcodeBadVers)
	}
	return m.SetEdns0(o.UDPSize(), o.Do())
}

// alike has both pods do the same, the one that queries the cache until the cache has the answers, and the kernel where it is to, and
// compares what they print.
func (s *stubs) alike(t *testing.T, what string, do func(p *pod) string) {
	t.Helper()
	times := 2
	if s.kernel {
		times = 4 // the third has what the second was answered from the cache
	}
	var want string
	got := make([]string, times)
	var both sync.WaitGroup
	both.Go(func() { want = do(s.direct) })
	both.Go(func() {
		for i := range got {
			got[i] = do(s.steered)
		}
	})
	both.Wait()
	for when, got := range got {
		testutil.Equal(t, fmt.Sprintf("%s, time %d, kube-dns and the cache", what, when+1), strings.Split(want, "\n"), strings.Split(got, "\n"))
	}
	if !strings.Contains(want, "192.0.2.1") && !strings.Contains(want, "2001:db8::1") && !strings.Contains(want, ";; Got answer") {
		t.Errorf("%s hears nothing:\n%s", what, want)
	}
}

// TestResolverLibraries: programs hear of each name from the cache what they hear from kube-dns, by whatever library and with whatever
// options.
func TestResolverLibraries(t *testing.T) { byLevel(t, resolverLibraries) }

func resolverLibraries(t *testing.T, s *stubs) {
	t.Helper()
	build := exec.Command("gcc", "-o", made.Path("lookup-c-ares"), "testdata/lookup-ares/lookup.c", "-lcares")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	options := map[string][]string{
		"glibc": {"ndots:5", "ndots:5 edns0 trust-ad", "ndots:5 use-vc", "ndots:2 single-request", "ndots:5 single-request-reopen rotate", "ndots:1 edns0 use-vc"},
		"musl":  {"ndots:5", "ndots:1"}, "go": {"ndots:5", "ndots:1 use-vc", "ndots:5 single-request edns0 trust-ad"},
		"c-ares": {"ndots:5", "ndots:1 rotate", "ndots:5 edns0"},
	}
	var wg sync.WaitGroup
	for library, all := range options {
		for i, o := range all {
			name := fmt.Sprintf("%s-%d", library, i)
			for _, p := range []*pod{s.steered, s.direct} {
				p.resolver(name, o+" timeout:2 attempts:2")
			}
			wg.Go(func() {
				for _, family := range []string{"any", "4", "6"} {
					s.alike(t, library+", "+o+", family "+family, func(p *pod) string { return sorted(p.lookup(library, name, family, corpusNames...)) })
				}
			})
		}
	}
	wg.Wait()
}

// sorted is what a lookup program printed, with the addresses of each name in order: c-ares has them as they come.
func sorted(out string) string {
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		words := strings.Fields(line)
		slices.Sort(words[min(1, len(words)):])
		lines[i] = strings.Join(words, " ")
	}
	return strings.Join(lines, "\n")
}

// TestResolverOfJava: the C library as Java calls it, and its own resolver.
func TestResolverOfJava(t *testing.T) { byLevel(t, resolverOfJava) }

func resolverOfJava(t *testing.T, s *stubs) {
	t.Helper()
	for _, p := range []*pod{s.steered, s.direct} {
		p.resolver("java", "ndots:5 timeout:2 attempts:2")
	}
	source, err := filepath.Abs("testdata/lookup-java/Lookup.java")
	testutil.Must(t, err)
	s.alike(t, "java", func(p *pod) string {
		return p.under("java", append([]string{"java", source, s.n.ClusterDNS()[0].String()}, corpusNames...)...)
	})
}

// under runs a program in the pod with its resolv.conf of that name.
func (p *pod) under(resolver string, args ...string) string {
	out, err := p.TryRun("", p.underCommand(resolver, args...)...)
	if err != nil {
		p.node.t.Errorf("%q: %v\n%s", args, err, out)
	}
	return out
}

// TestResolverDig sends queries with dig's options, and with none. Flags, sections and EDNS are alike but for TTLs, the order of
// addresses, and the size that a server takes.
func TestResolverDig(t *testing.T) { byLevel(t, resolverDig) }

func resolverDig(t *testing.T, s *stubs) {
	t.Helper()
	for _, p := range []*pod{s.steered, s.direct} {
		p.resolver("dig", "ndots:5 timeout:2 attempts:2")
	}
	var wg errgroup.Group
	wg.SetLimit(4) // more would find the test's kube-dns silent on a busy machine
	for _, o := range []string{"", "+noedns", "+edns=0 +nocookie", "+cookie=0123456789abcdef", "+dnssec", "+dnssec +cdflag", "+adflag", "+noadflag +nocookie", "+cdflag +nocookie",
		"+norecurse +nocookie", "+tcp", "+tcp +nocookie +keepopen", "+bufsize=512 +nocookie", "+bufsize=1 +nocookie", "+bufsize=65535 +nocookie", "+ignore +bufsize=512",
		"+nsid", "+subnet=192.0.2.0/24", "+padding=128", "+ednsopt=65001:00ff", "+ednsflags=0x40 +nocookie", "+edns=1 +noednsnegotiation", "+zflag", "+aaflag", "+tcflag", "+keepalive +tcp",
		"+expire", "+raflag", "+opcode=NOTIFY", "+header-only", "+search +showsearch"} {
		wg.Go(func() error {
			var args []string
			for _, name := range []string{"www.example.com", "WwW.ExAmPlE.cOm", "nowhere.example.com", "nodata.example.com", "cdn.example.com", "fails.example.com"} {
				for _, qtype := range []string{"A", "AAAA", "TXT", "ANY"} {
					args = append(args, name, qtype)
				}
			}
			s.alike(t, "dig "+o, func(p *pod) string {
				return digs(p.under("dig", slices.Concat([]string{"dig", "+nottlid", "+nostats", "+nocmd"}, testutil.DigOnce, strings.Fields(o), args)...))
			})
			return nil
		})
	}
	testutil.Must(t, wg.Wait())
}

// digs is what dig printed, without what differs between any two servers.
func digs(out string) string {
	var lines, block []string
	flush := func() {
		slices.Sort(block)
		lines, block = append(lines, block...), nil
	}
	for line := range strings.SplitSeq(out, "\n") {
		switch {
		case strings.Contains(line, "->>HEADER<<-"):
			line, _, _ = strings.Cut(line, ", id:")
		case strings.HasPrefix(line, "; EDNS:"):
			line, _, _ = strings.Cut(line, "; udp:") // the agent's is its own
		case strings.Contains(line, "COOKIE"), strings.Contains(line, "who.invalid"):
			continue
		case line != "" && line[0] != ';':
			block = append(block, line)
			continue
		}
		flush()
		lines = append(lines, line)
	}
	flush()
	return strings.Join(lines, "\n")
}

// TestResolverResolved: systemd-resolved in the pod queries the cache, and glibc queries it.
func TestResolverResolved(t *testing.T) {
	resolved := os.Getenv(envResolved)
	if resolved == "" {
		t.Skip("run it by make test-resolvers")
	}
	byLevel(t, func(t *testing.T, s *stubs) { resolverResolved(t, s, resolved) })
}

func resolverResolved(t *testing.T, s *stubs, resolved string) {
	s.n.write("stub", "nameserver 127.0.0.53\nsearch "+strings.Join(s.n.searches(), " ")+"\noptions ndots:5 edns0 trust-ad timeout:5\n")
	for _, settings := range []string{"DNSSEC=no", "DNSSEC=no\nCache=no", "DNSSEC=allow-downgrade"} {
		s.n.write("resolved.conf", "[Resolve]\nDNS="+s.n.ClusterDNS()[0].String()+"\nFallbackDNS=\nLLMNR=no\nMulticastDNS=no\n"+settings+"\n")
		s.alike(t, settings, func(p *pod) string { return p.resolved(t, resolved) })
	}
}

//go:embed testdata/resolved.sh
var resolvedScript string

// resolved starts systemd-resolved in namespaces of its own mounts and of the pod's network, and looks names up by it.
func (p *pod) resolved(t *testing.T, resolved string) string {
	t.Helper()
	out, err := p.TryRun("", append([]string{"unshare", "--mount", "sh", "-c", resolvedScript, "sh", p.node.path("resolved.conf"), p.node.path("stub"), p.node.path("nsswitch.conf"), resolved,
		made.Path("lookup-glibc"), "any"}, corpusNames...)...)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return out
}
