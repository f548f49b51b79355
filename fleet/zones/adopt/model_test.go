package adopt

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	modelEpisodes = flag.Int("episodes", 50, "episodes of TestModel")
	modelSeed     = flag.Uint64("seed", 41, "seed of TestModel's first episode")
)

// model is an adoption whose process is killed at any time, whose messages and answers are lost, and whose zone others write.
type model struct {
	*testing.T
	*primary
	r       *rand.Rand
	now     time.Time
	file    []byte // what the disk has
	touched map[string]bool
	takes   map[string]int // by host
	unsaved map[string]int // kills between a host's update and the next write of the file
	undo    bool
	noisy   bool
	met     map[string]bool // errors
	last    error
	done    bool
	seen    map[string]bool // hosts that were reported
}

// TestModel: no message changes what another program wrote, none deletes an address, a host is taken once, and undo restores
// all that others did not touch.
func TestModel(t *testing.T) {
	ends := map[string]int{}
	for i := range uint64(*modelEpisodes) {
		seed := *modelSeed + i
		m := newModel(t, seed)
		before := m.lines()
		m.noisy = m.r.IntN(3) > 0
		for range 60 {
			m.maybeDisturb(12)
			m.run()
			m.now = m.now.Add(time.Duration(m.r.IntN(40)) * time.Second)
		}
		e := m.load()
		for err := range m.met {
			ends[err]++
		}
		ends[fmt.Sprintf("noisy %v: %s, %v", m.noisy, e.Step, m.last)]++
		if !m.noisy && (e.Step != Verified || len(m.seen) > 0) {
			t.Errorf("seed %d: undisturbed, and %s, %v", seed, e.Step, m.last)
		}
		m.noisy = true
		for range m.r.IntN(10) {
			m.disturb()
		}
		m.undo, m.done = true, false
		m.seen = map[string]bool{}
		for i := range 40 {
			m.noisy = i < 20
			m.run()
		}
		if !m.done {
			t.Errorf("seed %d: undo does not end: %v", seed, m.last)
		}
		m.restored(before, m.load())
		if t.Failed() {
			t.Fatalf("go test -run TestModel -episodes 1 -seed %d", seed)
		}
	}
	for _, want := range []string{"noisy true: verified, <nil>", "noisy true: verifying, " + ErrForeign.Error(),
		"noisy true: verified, " + ErrForeign.Error(), ErrWrites.Error()} {
		if ends[want] == 0 && *modelEpisodes >= 50 {
			t.Errorf("no episode ends with %s; %v", want, ends)
		}
	}
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{T: t, r: rand.New(rand.NewPCG(seed, 3)), now: start, met: map[string]bool{}, seen: map[string]bool{},
		touched: map[string]bool{}, takes: map[string]int{}, unsaved: map[string]int{}}
	lines := slices.Clone(two)
	for i := range m.r.IntN(8) {
		lines = append(lines, fmt.Sprintf("h%d %d A 192.0.2.%d", i, m.r.IntN(3)*60, 20+i), fmt.Sprintf("a-h%d 0 TXT %s", i, mine))
		if m.r.IntN(2) == 0 {
			lines = append(lines, fmt.Sprintf("h%d 60 TXT %s", i, mine))
		}
	}
	m.primary = newPrimary(t, lines...)
	m.save(exported(t, m.primary))
	return m
}

func (m *model) save(e *Export) {
	data, err := e.Encode()
	testutil.Must(m, err)
	m.file = data
}

func (m *model) load() *Export {
	e, err := Decode(m.file)
	testutil.Must(m, err)
	if again, err := e.Encode(); err != nil || !bytes.Equal(again, m.file) {
		m.Fatalf("decoded and encoded: %v\n%s", err, again)
	}
	return e
}

func (m *model) maybeDisturb(n int) {
	if m.noisy && m.r.IntN(n) == 0 {
		m.disturb()
	}
}

// disturb is another program, which writes at one of the hosts.
func (m *model) disturb() {
	e := m.load()
	h := e.Hosts[m.r.IntN(len(e.Hosts))]
	m.touched[h.Name] = true
	rrs := parse(slices.Concat(h.Records, h.Registry))
	rr := rrs[m.r.IntN(len(rrs))]
	switch m.r.IntN(4) {
	case 0:
		delete(m.sets, key(rr))
	case 1:
		m.sets[key(rr)] = rr // possibly back
	case 2:
		rr.Header().Ttl = 30
		m.sets[key(rr)] = rr
	default:
		x := records(m, fmt.Sprintf("x 60 A 198.51.100.%d", m.r.IntN(3)))[0]
		x.Header().Name = h.Name
		m.sets[key(x)] = x
	}
}

// run is one life of the process, as the command's loop has it, which a kill may end at any line.
func (m *model) run() {
	e := m.load()
	killed := func() bool { return m.r.IntN(15) == 0 }
	for range 4 {
		var a Action
		if m.undo {
			a, m.last = e.Undo(m.read())
		} else {
			a, m.last = e.Next(m.read(), m.now, interval)
		}
		if killed() {
			return
		}
		m.save(e)
		for _, line := range a.Foreign {
			m.seen[strings.Fields(strings.TrimLeft(line, "+- "))[0]] = true
		}
		m.done = m.undo && a.Done
		m.met[fmt.Sprint(m.last)] = true
		if m.last != nil || a.Done || killed() {
			return
		}
		for _, u := range a.Updates {
			lost := m.r.IntN(10)
			if lost == 0 { // before the server has it
				break
			}
			m.maybeDisturb(10)
			name := e.Hosts[u.Host].Name
			made := m.send(e, u)
			if made && !m.undo {
				m.takes[name]++
			}
			if lost == 1 { // the answer
				break
			}
			if killed() {
				m.unsaved[name]++
				return
			}
			if !m.undo {
				e.Sent(u)
				m.save(e)
			}
			if m.takes[name] > 1+m.unsaved[name] {
				m.Errorf("%s was taken %d times", name, m.takes[name])
			}
		}
		m.now = m.now.Add(a.Wait)
	}
}

// send makes an update, and checks that it changed nothing but what the export has.
func (m *model) send(e *Export, u Update) bool {
	h := e.Hosts[u.Host]
	before := m.lines()
	made := m.update(u)
	after := m.lines()
	served := func(lines []string) (addrs []string) {
		for _, rr := range parse(lines) {
			if t := rr.Header().Rrtype; t == dns.TypeA || t == dns.TypeAAAA {
				addrs = append(addrs, key(rr))
			}
		}
		return addrs
	}
	for _, d := range differences(served(before), served(after)) {
		if !m.undo || d[0] == '-' {
			m.Errorf("%s: served: %s", h.Name, d)
		}
	}
	for _, d := range differences(before, after) {
		line := d[2:]
		switch exported := slices.Contains(h.Registry, line) || slices.Contains(h.Records, line); {
		case !m.undo && d[0] == '-' && slices.Contains(h.Registry, line):
		case m.undo && d[0] == '+' && exported:
		case m.undo && slices.Contains(served(h.Records), key(parse([]string{line})[0])): // its TTL
		default:
			m.Errorf("%s: %s", h.Name, d)
		}
	}
	return made
}

// restored checks the zone after undo: all is as before that no other program touched, and what one did is reported or as before.
func (m *model) restored(before []string, e *Export) {
	now := m.read()
	for _, h := range e.Hosts {
		s, diff := h.compare(now, e.current(now))
		if s != standing && !m.touched[h.Name] {
			m.Errorf("%s is not restored: %v", h.Name, diff)
		}
		if s != standing && !m.seen[h.Name] {
			m.Errorf("%s is not restored, and not reported: %v", h.Name, diff)
		}
	}
	for _, d := range differences(before, m.lines()) {
		name, _, _ := strings.Cut(d[2:], " ")
		host := strings.TrimPrefix(strings.TrimPrefix(name, "aaaa-"), "a-")
		if !m.touched[host] && !m.touched[name] {
			m.Errorf("after undo: %s", d)
		}
	}
}
