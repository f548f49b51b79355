package cache_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// Both caches run the same random trials, with the same upstream, queries and clock. Each difference must belong to a class of the table
// (differential_classes_test.go, and DIFFERENCES.md for people). One that belongs to none fails the test, which prints the trial as a
// scenario to store.

var (
	differentialSteps = flag.Int("differential.steps", 20_000, "steps in which both caches are compared")
	differentialSeed  = flag.Uint64("differential.seed", 1, "where the trials of TestDifferential come from")
)

// answer is the meaning of one side's answer to a query, without order, case and compression.
type answer struct {
	silent bool
	rcode  string
	flags  string
	tc     bool
	ttls   map[string]int // by section and record
	cached bool           // it took no time on the bubble's clock
	after  time.Duration
	fault  error // how it breaks the rules for every answer, see honest
}

// difference is a step in which the sides did not do the same about a name.
type difference struct {
	block        string
	name         string
	ask          *ask    // nil: only their queries to the upstream differ, in the background
	rule         *rule   // the upstream's present answer to the query
	rules        []*rule // and what it has answered about the name so far
	mood         mood
	withoutRD    bool // it was queried without RD, now or before
	inUpperCase  bool
	ours, theirs answer
	askedOurs    int // queries to the upstream in this step
	askedTheirs  int
}

// outcome is what a trial found.
type outcome struct {
	steps      int
	explained  map[string]int
	unexpected []string
}

// contest is a running trial.
type contest struct {
	t       *testing.T
	w       *world
	block   string
	sides   [2]*side
	classes []class
	out     *outcome
}

// side is one of the two caches.
type side struct {
	subject  subject
	process  process
	upstream *scripted
	server   *dnsserver.Server
	seen     int // how many of the upstream's queries were counted
}

// trial plays one world. It gives up a name as soon as the sides differ about it: what followed would follow from that.
func trial(t *testing.T, data []byte, ours, theirs subject, classes []class) outcome {
	t.Helper()
	out := outcome{explained: make(map[string]int)}
	synctest.Test(t, func(t *testing.T) {
		<-time.After(epoch)
		w := &world{choices: &choices{data: data}}
		w.wild = w.choices.one(2)
		c := &contest{t: t, w: w, block: pick(w.choices, blocks()...), classes: classes, out: &out}
		for i, s := range []subject{ours, theirs} {
			c.sides[i] = &side{subject: s, process: s.open(t, nil, answers.Boot{}), upstream: new(scripted)}
			server, err := serve(c.sides[i].process.setup(), c.block, c.sides[i].upstream)
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			c.sides[i].server = server
		}
		for ; !w.choices.over() && len(out.unexpected) == 0; out.steps++ {
			c.step()
		}
		for _, s := range c.sides {
			if _, err := s.process.snapshot(answers.Boot{}); err != nil {
				t.Errorf("%s: snapshot: %v", s.subject.name, err)
			}
		}
		<-time.After(time.Minute)
	})
	return out
}

// step does one thing to both sides and compares.
func (c *contest) step() {
	from := c.w.choices
	asked, d := -1, difference{}
	switch from.of(16) {
	case 0, 1, 2:
		pause := c.w.wait()
		c.w.note("", "wait %v", pause)
		<-time.After(pause)
	case 3:
		text := c.w.moodLine()
		c.w.note("", "%s", text)
		m := c.parse(text).mood
		for _, s := range c.sides {
			s.upstream.feel(*m)
		}
	case 4:
		c.say(c.w.question())
	default:
		i, qtype := c.w.question()
		name := c.w.name(i)
		if c.sides[0].upstream.rule(dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET}) == nil {
			c.say(i, qtype)
		}
		text := c.w.askLine(name, qtype)
		c.w.note(name, "%s", text)
		asked, d = i, c.ask(c.parse(text).ask)
	}
	synctest.Wait()
	c.settle(asked, d)
}

// ask sends one query to both caches at the same instant.
func (c *contest) ask(a *ask) difference {
	d := difference{ask: a}
	q := a.message(a.names[0], uint16(1+len(c.w.history)%65535))
	var answers [2]answer
	var wg sync.WaitGroup
	put := func(i int) {
		r, err := put(c.sides[i].server, q.Copy(), a.tcp)
		answers[i] = meaning(q, r, a.tcp)
		answers[i].fault = errors.Join(err, answers[i].fault)
	}
	wg.Go(func() { put(0) })
	put(1)
	wg.Wait()
	d.ours, d.theirs = answers[0], answers[1]
	d.rule, d.mood = c.sides[0].upstream.rule(q.Question[0]), c.sides[0].upstream.now()
	if d.rule.instead != nil {
		d.ours.fault, d.theirs.fault = nil, nil // the upstream broke the rules, and so does a cache that passes its answer on
	}
	return d
}

// meaning reads a reply.
func meaning(q *dns.Msg, r reply, tcp bool) answer {
	a := answer{silent: r.msg == nil, cached: r.after < latency, after: r.after}
	if r.msg == nil {
		return a
	}
	m := r.msg
	a.fault = honest(q, r, tcp)
	a.rcode, a.tc = dns.RcodeToString[m.Rcode], m.Truncated
	a.flags = fmt.Sprintf("aa=%v ad=%v ra=%v", m.Authoritative, m.AuthenticatedData, m.RecursionAvailable)
	a.ttls = make(map[string]int)
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT || m.Truncated {
				continue // what is left of a truncated answer means nothing
			}
			ttl := int(rr.Header().Ttl)
			rr.Header().Ttl = 0
			a.ttls[fmt.Sprintf("%d %s", i, strings.ToLower(strings.ReplaceAll(rr.String(), "\t", " ")))] = ttl
		}
	}
	return a
}

// same reports whether two answers mean the same, have the same TTLs and took the same time.
func (a answer) same(b answer) bool {
	return a.sameButTTLs(b) && maps.Equal(a.ttls, b.ttls) && a.after == b.after
}

func (a answer) sameButTTLs(b answer) bool {
	return a.silent == b.silent && a.rcode == b.rcode && a.flags == b.flags && a.tc == b.tc && a.sameRecords(b)
}

func (a answer) sameRecords(b answer) bool {
	return slices.Equal(slices.Sorted(maps.Keys(a.ttls)), slices.Sorted(maps.Keys(b.ttls)))
}

func (a answer) String() string {
	if a.silent {
		return "silence"
	}
	text := fmt.Sprintf("%s %s tc=%v after %v", a.rcode, a.flags, a.tc, a.after)
	for i, r := range slices.Sorted(maps.Keys(a.ttls)) {
		if i == 5 {
			text += fmt.Sprintf("\n    and %d more", len(a.ttls)-i)
			break
		}
		text += fmt.Sprintf("\n    %s (TTL %d)", r, a.ttls[r])
	}
	if a.fault != nil {
		text += "\n    fault: " + a.fault.Error()
	}
	return text
}

// settle compares the state of every name after the step. about is the one that d is about.
func (c *contest) settle(about int, d difference) {
	counts := [2]map[string]int{c.sides[0].newQuestions(), c.sides[1].newQuestions()}
	for i := range worldNames {
		name := c.w.name(i)
		n := difference{}
		if i == about {
			n = d
		}
		n.askedOurs, n.askedTheirs = counts[0][name], counts[1][name]
		if n.ours.fault == nil && n.theirs.fault == nil && n.ours.same(n.theirs) && n.askedOurs == n.askedTheirs {
			continue
		}
		n.block, n.name, n.rules = c.block, name, c.sides[0].upstream.about(name)
		before := func(word string) bool {
			return slices.ContainsFunc(c.w.history, func(l line) bool { return l.name == name && strings.Contains(l.text, word) })
		}
		n.withoutRD, n.inUpperCase = before(" rd-"), before(strings.ToUpper(name))
		c.judge(n)
		c.w.age[i]++
	}
}

// judge finds the class that explains a difference.
func (c *contest) judge(d difference) {
	if d.ours.fault == nil {
		for _, cl := range c.classes {
			if cl.explains(d) {
				c.out.explained[cl.name]++
				return
			}
		}
	}
	c.out.unexpected = append(c.out.unexpected, fmt.Sprintf("%s\n# ours: %v; asked the upstream %d times\n# theirs: %v; asked the upstream %d times",
		c.w.story(c.block, d.name), d.ours, d.askedOurs, d.theirs, d.askedTheirs))
}

// say makes the upstream of both sides answer a query again.
func (c *contest) say(i int, qtype uint16) {
	name := c.w.name(i)
	lines := c.w.upstreamLines(name, qtype)
	for _, l := range lines {
		c.w.note(name, "%s", l)
	}
	r := c.parse(strings.Join(lines, "\n")).upstream
	for _, s := range c.sides {
		s.upstream.add(r)
	}
}

// parse returns the step for a text. The world is written as a scenario, so that each trial can be stored as one.
func (c *contest) parse(text string) step {
	c.t.Helper()
	sc, err := parseScenario("trial", "name n\nsee s\n"+c.block+"\n"+text+"\nasked 0\n")
	if err != nil {
		c.t.Fatalf("%v in %q", err, text)
	}
	return sc.steps[0]
}

// newQuestions counts by name what reached the upstream since the last call.
func (s *side) newQuestions() map[string]int {
	s.upstream.mu.Lock()
	defer s.upstream.mu.Unlock()
	n := make(map[string]int)
	for _, q := range s.upstream.asked[s.seen:] {
		n[strings.ToLower(q.Name)]++
	}
	s.seen = len(s.upstream.asked)
	return n
}

// bytesOf makes the choices of a trial.
func bytesOf(random *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

// TestDifferential is the fixed run: -differential.steps and -differential.seed make it another.
func TestDifferential(t *testing.T) {
	random := rand.New(rand.NewPCG(*differentialSeed, 0))
	explained := make(map[string]int)
	steps, trials := 0, 0
	before := panics(t)
	for ; steps < *differentialSteps; trials++ {
		out := trial(t, bytesOf(random, 1200), contender(), stock(), classes())
		steps += out.steps
		for name, n := range out.explained {
			explained[name] += n
		}
		if len(out.unexpected) > 0 {
			t.Fatalf("trial %d of seed %d, a difference that no class explains:\n%s", trials, *differentialSeed, out.unexpected[0])
		}
	}
	if now := panics(t); now != before {
		t.Errorf("%.0f panics", now-before)
	}
	t.Logf("%d steps in %d trials of seed %d; differences by class: %v", steps, trials, *differentialSeed, explained)
}

// TestDifferentialCanFail compares CoreDNS's cache with no cache at all: differences must be found.
func TestDifferentialCanFail(t *testing.T) {
	out := trial(t, bytesOf(rand.New(rand.NewPCG(1, 0)), 1200), subject{name: "none", open: func(*testing.T, []byte, answers.Boot) process { return noCache{} }}, stock(), nil)
	if len(out.unexpected) == 0 {
		t.Fatal("nothing was found")
	}
	// What was found is printed as a scenario. It can be parsed once the missing expectation is added.
	text, _, _ := strings.Cut(out.unexpected[0], "# ours")
	if _, err := parseScenario("found", text+"asked 1000000\n"); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}

// noCache is the process of a plugin that is not there.
type noCache struct{}

func (noCache) snapshot(answers.Boot) ([]byte, error) { return nil, nil }
func (noCache) setup() caddy.SetupFunc                { return func(*caddy.Controller) error { return nil } }

// FuzzDifferential lets the fuzzer choose the trials.
func FuzzDifferential(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(bytesOf(rand.New(rand.NewPCG(seed, 1)), 200))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			return
		}
		if out := trial(t, data, contender(), stock(), classes()); len(out.unexpected) > 0 {
			t.Fatalf("a difference that no class explains:\n%s", out.unexpected[0])
		}
	})
}

// TestDifferencesAreTold: DIFFERENCES.md and classes have the same classes.
func TestDifferencesAreTold(t *testing.T) {
	page, err := os.ReadFile("DIFFERENCES.md")
	testutil.Must(t, err)
	var told, known []string
	for l := range strings.Lines(string(page)) {
		cells := strings.Split(l, " | ")
		if name, ok := strings.CutPrefix(cells[0], "| "); ok && len(cells) == 3 && name != "class" && name != "---" {
			told = append(told, name)
		}
	}
	for _, c := range classes() {
		known = append(known, c.name)
	}
	slices.Sort(told)
	slices.Sort(known)
	if !slices.Equal(told, known) {
		t.Errorf("DIFFERENCES.md tells of\n%q\nand the test knows\n%q", told, known)
	}
}
