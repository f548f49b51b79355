package steering

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// corpus is what kube-dns knows in these tests, by name: what A and AAAA say. Names without a line do not exist; a "*" stands for
// any labels.
var corpus = []struct{ name, a, aaaa string }{
	{"web.default.svc.cluster.local.", "10.96.1.1", "-"},
	{"default.svc.cluster.local.", "-", "-"},
	{"db.data.svc.cluster.local.", "10.96.1.2", "fd00:96::2"},
	{"data.svc.cluster.local.", "-", "-"},
	{"www.example.com.", "192.0.2.1", "2001:db8::1"},
	{"v4.example.com.", "192.0.2.2", "-"},
	{"v6.example.com.", "-", "2001:db8::3"},
	{"cdn.example.com.", "CNAME edge.example.net. 192.0.2.4", "CNAME edge.example.net."},
	{"nodata.example.com.", "-", "-"},
	{"loop.example.com.", "CNAME gone.example.net.", "CNAME gone.example.net."},
	{"fails.example.com.", "SERVFAIL", "SERVFAIL"},
	{"half.example.com.", "192.0.2.5", "SERVFAIL"},
	{"wiki.corp.example.", "192.0.2.6", "-"},
	{"empty.corp.example.", "-", "-"},
	{"empty.", "192.0.2.7", "-"},
	{"broken.corp.example.", "SERVFAIL", "SERVFAIL"},
	{"*.wild.example.com.", "192.0.2.8", "2001:db8::8"},
	{"*.corp.example.com.", "192.0.2.9", "-"},
}

// answerCorpus is kube-dns's answer.
func answerCorpus(q testutil.Question) *dns.Msg {
	m := new(dns.Msg).SetReply(q.Msg)
	m.RecursionAvailable = true
	name, owner, how := strings.ToLower(q.Name), q.Name, ""
	for _, c := range corpus {
		if suffix, wild := strings.CutPrefix(c.name, "*"); c.name == name || wild && strings.HasSuffix(name, suffix) {
			how = cmp.Or(map[uint16]string{dns.TypeA: c.a, dns.TypeAAAA: c.aaaa}[q.Type], "-")
		}
	}
	record := func(owner, text string) []dns.RR {
		rr, err := dns.NewRR(owner + " 30 IN " + text)
		if err != nil {
			panic(err) // the corpus's own
		}
		return []dns.RR{rr}
	}
	if rest, ok := strings.CutPrefix(how, "CNAME "); ok {
		target, address, _ := strings.Cut(rest, " ")
		m.Answer = record(owner, "CNAME "+target)
		owner, how = target, cmp.Or(address, "-")
	}
	switch how {
	case "", "-":
		m.Rcode = map[bool]int{true: dns.RcodeNameError, false: dns.RcodeSuccess}[how == ""]
		m.Ns = record(".", "SOA a.invalid. b.invalid. 0 0 0 0 30")
	case "SERVFAIL":
		m.Rcode = dns.RcodeServerFailure
	default:
		m.Answer = append(m.Answer, record(owner, dns.Type(q.Type).String()+" "+how)...)
	}
	return m
}

// lookups builds the program that looks names up, with each library.
var lookups = sync.OnceValue(func() error {
	for name, command := range map[string][]string{
		"glibc": {"gcc", "-o"}, "musl": {"musl-gcc", "-static", "-o"}, "go": {"go", "build", "-trimpath", "-buildvcs=false", "-o"},
	} {
		source := map[bool]string{true: "testdata/lookup/lookup.go", false: "testdata/lookup-c/lookup.c"}[name == "go"]
		cmd := exec.Command(command[0], append(command[1:], made.Path("lookup-"+name), source)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, text)
		}
	}
	return nil
})

// resolver writes a resolv.conf of the pod's.
func (p *pod) resolver(name, options string) {
	var b strings.Builder
	for _, a := range p.node.ClusterDNS() {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	fmt.Fprintf(&b, "search %s\noptions %s\n", strings.Join(p.node.searches(), " "), options)
	p.node.write(p.name+"-"+name, b.String())
}

// lookup runs the program in the pod. It may be called from several goroutines.
func (p *pod) lookup(library, resolver, family string, names ...string) string {
	out, err := p.TryRun("", p.lookupCommand(library, resolver, family, names...)...)
	if err != nil {
		p.node.t.Errorf("%s: %v\n%s", library, err, out)
	}
	return out
}

// lookupCommand is the program with the pod's resolv.conf of that name.
func (p *pod) lookupCommand(library, resolver, family string, names ...string) []string {
	return p.underCommand(resolver, append([]string{made.Path("lookup-" + library), family}, names...)...)
}

// underCommand is a command with a resolv.conf bound over the node's in a mount namespace of its own.
func (p *pod) underCommand(resolver string, args ...string) []string {
	const script = `mount --make-rprivate / && mount --bind "$1" /etc/resolv.conf &&
		{ [ ! -e /etc/nsswitch.conf ] || mount --bind "$2" /etc/nsswitch.conf; } && shift 2 && exec "$@"`
	command := []string{"unshare", "--mount", "sh", "-c", script, "sh", p.node.path(p.name + "-" + resolver), p.node.path("nsswitch.conf")}
	return append(command, args...)
}

// corpusNode is a node whose kube-dns knows the corpus, with a pod.
func corpusNode(t *testing.T, s setup) (n *node, p *pod) {
	t.Helper()
	n = newNode(t, s)
	n.DNS.Behave(testutil.Behaviour{Handler: answerCorpus})
	n.write("nsswitch.conf", "hosts: dns\n")
	testutil.Must(t, lookups())
	p = n.addPod(nil)
	n.startAgent()
	return n, p
}

// TestQuestionsForOneName counts a pod's queries for a name outside the cluster, and those that reach kube-dns then, with ndots:5 and with
// ndots:1.
func TestQuestionsForOneName(t *testing.T) {
	cluster := []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	for name, searches := range map[string][]string{"the cluster's domains": cluster, "and one of the node's": append(cluster, "corp.example")} {
		t.Run(name, func(t *testing.T) { countQuestions(t, searches) })
	}
}

func countQuestions(t *testing.T, searches []string) {
	// Denials are kept however slow the machine is.
	n, p := corpusNode(t, setup{families: testutil.IPv4, searches: searches, config: "cache: {negativeTTL: 60s}\n"})
	total, _ := n.countsInKernel(p)
	hosts := 0
	for _, library := range []string{"glibc", "musl", "go"} {
		for _, tc := range []struct {
			name string
			want int // of the pod, and at most at kube-dns
		}{
			{"ndots:5", 2 * (len(searches) + 1)},
			{"ndots:1", 2},
		} {
			p.resolver("count", tc.name+" timeout:5")
			for range 2 {
				hosts++
				host := fmt.Sprintf("h%d.wild.example.com", hosts)
				n.DNS.Forget()
				before, from := total, len(n.agent.Output())
				if out := p.lookup(library, "count", "any", host); !strings.Contains(out, "192.0.2.8") || !strings.Contains(out, "2001:db8::8") {
					t.Errorf("%s, %s: %s", library, tc.name, out)
				}
				testutil.Eventually(t, func() error { // a query is counted when its answer is out; without a lease, kube-dns has it
					total, _ = n.countsInKernel(p)
					wrong := total-before != int64(tc.want) && !strings.Contains(n.agent.Output()[from:], "; kube-dns answers, except")
					return testutil.ErrorIf(wrong, "%s, %s: the pod asked %d, want %d", library, tc.name, total-before, tc.want)
				})
				seen := map[string]bool{} // the agent repeats a query that a busy machine answers late
				for _, q := range n.DNS.Log() {
					if strings.Contains(strings.ToLower(q.Name), "com") && q.Type != dns.TypeTXT {
						seen[fmt.Sprint(strings.ToLower(q.Name), q.Type)] = true
					}
				}
				if len(seen) > tc.want {
					t.Errorf("%s, %s: kube-dns was asked %d, want at most %d", library, tc.name, len(seen), tc.want)
				}
			}
		}
	}
}
