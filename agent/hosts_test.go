package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// What the role may cost, once it has started.
const (
	hostsMemory = 24 << 20 // bytes
	hostsCPU    = 0.0005   // of a core
)

const (
	ownLines      = "127.0.0.1\tlocalhost\n127.0.1.1\tnode-1\n"
	hostsEnd      = "\tregistry.shop.svc registry.shop.svc.cluster.local # by neardns-agent hosts\n"
	registryLines = "10.96.0.5" + hostsEnd + "fd00:10:96::5" + hostsEnd
)

// hostsNode is a node with the role on it, and the kube-dns that it asks.
type hostsNode struct {
	t       *testing.T
	ns      *testutil.NetNS
	dir     string
	command []string
	kubeDNS *testutil.DNSServer
	running *testutil.Process
}

func newHostsNode(t *testing.T, bin string) *hostsNode {
	t.Helper()
	n := &hostsNode{t: t, ns: testutil.NewNS(t, "hosts"), dir: t.TempDir()}
	n.ns.Run("ip", "addr", "add", "10.96.0.10/32", "dev", "lo")
	n.kubeDNS = testutil.ServeDNS(t, n.ns, testutil.DNSConfig{Name: "KUBEDNS", Listen: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}, Strict: true, Records: []string{
		"kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1", "registry.shop.svc.cluster.local. 30 IN A 10.96.0.5",
		"registry.shop.svc.cluster.local. 30 IN AAAA fd00:10:96::5",
	}})
	text := head + "redirects: [10.96.0.10]\nclusterDomain: cluster.local\nhosts: {services: [shop/registry]}\nstateDir: " + n.dir + "/run\npersistDir: " + n.dir +
		"/lib\nlisten: {metrics: \"127.0.0.1:9263\", health: \"127.0.0.1:9264\"}\n"
	if err := errors.Join(os.Mkdir(n.dir+"/etc", 0o755), os.WriteFile(n.file(), []byte(ownLines), 0o644), os.WriteFile(n.dir+"/node.yaml", []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	n.command = []string{bin, "hosts", "--config", n.dir + "/node.yaml", "--host-root", n.dir}
	n.start()
	n.becomes(ownLines + registryLines)
	return n
}

func (n *hostsNode) file() string { return n.dir + "/etc/hosts" }

func (n *hostsNode) start() {
	n.t.Helper()
	testutil.Must(n.t, os.MkdirAll(n.dir+"/run", 0o755))
	n.running = n.ns.Start(n.command...)
}

// reboot is what a node without power comes back with: the role anew, and nothing of what it said below /run.
func (n *hostsNode) reboot() {
	n.t.Helper()
	n.running.Kill()
	testutil.Must(n.t, os.RemoveAll(n.dir+"/run"))
	n.start()
}

func (n *hostsNode) text() string {
	n.t.Helper()
	text, err := os.ReadFile(n.file())
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

func (n *hostsNode) becomes(want string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		if got := n.text(); got != want {
			return fmt.Errorf("the hosts file is\n%s\nwant\n%s\n%s", got, want, n.running.Output())
		}
		return nil
	})
}

// comesBack tells whether the file begins with a text again within a second.
func (n *hostsNode) comesBack(text string) bool {
	n.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Second*testutil.Slowness(); <-time.After(5 * time.Millisecond) {
		if strings.HasPrefix(n.text(), text) {
			return true
		}
	}
	return false
}

// TestHostsInTrouble runs the role itself. Whatever ails kube-dns, and through a reboot amid it, not a byte of the file changes; when all
// is well again, it is followed. Another program that rewrites the file every second loses nothing. Where nothing is wrong, it costs next to nothing.
//
// NEARDNS_HOSTS_MINUTES=10 (make test-hosts) is the whole of it.
func TestHostsInTrouble(t *testing.T) {
	testutil.RequireRoot(t)
	lasts, whole := 4*time.Second, false
	if n, err := strconv.Atoi(os.Getenv("NEARDNS_HOSTS_MINUTES")); err == nil {
		lasts, whole = time.Duration(n)*time.Minute, true
	}
	bin := filepath.Join(os.Getenv("NEARDNS_BUILT"), "neardns-agent") // what make has just built
	if !filepath.IsAbs(bin) {
		bin = filepath.Join(t.TempDir(), "neardns-agent")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, ".").CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	answer := func(f func(*dns.Msg)) testutil.Behaviour {
		return testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
			m := new(dns.Msg).SetReply(q.Msg)
			m.Authoritative = true
			f(m)
			return m
		}}
	}
	denies := answer(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError })
	if whole {
		compat.Say(t, "hosts", "kube-dns gone, silent, SERVFAIL; a reboot amid it", fmt.Sprintf("not a byte changes in %s", lasts))
	}
	for name, trouble := range map[string]func(n *hostsNode){
		"gone":             func(n *hostsNode) { n.kubeDNS.Stop() },
		"silent":           func(n *hostsNode) { n.kubeDNS.Behave(testutil.Behaviour{Drop: true}) },
		"SERVFAIL":         func(n *hostsNode) { n.kubeDNS.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure}) },
		"another question": func(n *hostsNode) { n.kubeDNS.Behave(answer(func(m *dns.Msg) { m.Question[0].Name = "a.example." })) },
		"impossible addresses": func(n *hostsNode) {
			n.kubeDNS.Behave(answer(func(m *dns.Msg) {
				rr, _ := dns.NewRR(m.Question[0].Name + " 30 IN A 127.0.0.1")
				m.Answer = append(m.Answer, rr)
			}))
		},
		"wrong domain": func(n *hostsNode) { n.kubeDNS.Behave(denies) },
		"no network":   func(n *hostsNode) { n.ns.Run("ip", "addr", "del", "10.96.0.10/32", "dev", "lo") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newHostsNode(t, bin)
			var was unix.Stat_t
			testutil.Must(t, unix.Stat(n.file(), &was))
			trouble(n)
			rebooted := false
			for begin := time.Now(); time.Since(begin) < lasts; <-time.After(20 * time.Millisecond) {
				if !rebooted && time.Since(begin) > lasts/2 {
					n.reboot()
					rebooted = true
				}
				var now unix.Stat_t
				if err := unix.Stat(n.file(), &now); err != nil || now.Ino != was.Ino || now.Ctim != was.Ctim {
					t.Fatalf("after %s it was written (%v):\n%s\n%s", time.Since(begin), err, n.text(), n.running.Output())
				}
			}
			if got := n.text(); got != ownLines+registryLines {
				t.Errorf("it holds\n%s", got)
			}
		})
	}
	t.Run("two of them", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		text, err := os.ReadFile(n.dir + "/node.yaml")
		if err != nil {
			t.Fatal(err)
		}
		other := strings.NewReplacer(":9263", ":9273", ":9264", ":9274", n.dir+"/run", n.dir+"/run2").Replace(string(text))
		testutil.Must(t, errors.Join(os.Mkdir(n.dir+"/run2", 0o755), os.WriteFile(n.dir+"/other.yaml", []byte(other), 0o644)))
		var was, now unix.Stat_t
		testutil.Must(t, unix.Stat(n.file(), &was))
		second := n.ns.Start(bin, "hosts", "--config", n.dir+"/other.yaml", "--host-root", n.dir)
		<-time.After(lasts)
		if err := unix.Stat(n.file(), &now); err != nil || now.Ctim != was.Ctim || n.text() != ownLines+registryLines {
			t.Errorf("it was written (%v):\n%s\n%s", err, n.text(), second.Output())
		}
		// Somebody else's edit stays, and each line is there once.
		edited := ownLines + "192.0.2.1\tprinter\n"
		testutil.Must(t, os.WriteFile(n.file(), []byte(edited), 0o644))
		n.becomes(edited + registryLines)
	})
	t.Run("faulty configuration", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		text, err := os.ReadFile(n.dir + "/node.yaml")
		if err != nil {
			t.Fatal(err)
		}
		faulty := strings.Replace(string(text), "shop/registry", "registry.shop.svc", 1)
		testutil.Must(t, os.WriteFile(n.dir+"/node.yaml", []byte(faulty), 0o644))
		testutil.Eventually(t, func() error {
			if said := n.running.Output(); !strings.Contains(said, "is not taken over") || !strings.Contains(said, "hosts.services[0]") {
				return errors.New(said)
			}
			return nil
		})
		n.becomes(ownLines + registryLines)
	})
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		<-time.After(2 * time.Second) // its start is over
		before := cpuTime(t, n.running.PID())
		<-time.After(lasts)
		used, memory := cpuTime(t, n.running.PID())-before, memoryOf(t, n.running.PID(), "VmRSS")
		share := used.Seconds() / lasts.Seconds()
		t.Logf("%.1f MiB resident, %.1f of them its own and not of the program's file; %s of CPU in %s: %.4f %% of a core", float64(memory)/(1<<20),
			float64(memoryOf(t, n.running.PID(), "RssAnon"))/(1<<20), used, lasts, 100*share)
		if whole && memory > hostsMemory {
			t.Errorf("it takes more than %d MiB", hostsMemory>>20)
		}
		if whole {
			compat.Say(t, "hosts", "cost on a node", fmt.Sprintf("%.1f MiB resident (%.1f without the pages of the program's file), %.3f %% of a core",
				float64(memory)/(1<<20), float64(memoryOf(t, n.running.PID(), "RssAnon"))/(1<<20), 100*share))
		}
		if whole && share > hostsCPU {
			t.Errorf("it takes more than %.2f %% of a core", 100*hostsCPU)
		}
	})
	t.Run("rewritten every second", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		every, times := 100*time.Millisecond, 40
		if whole {
			every, times = time.Second, 60
		}
		lost, back, longest := 0, 0, time.Duration(0)
		text := ""
		for i := range times {
			text = ownLines + fmt.Sprintf("192.0.2.1\tprinter-%d\n", i)
			testutil.Must(t, errors.Join(os.WriteFile(n.dir+"/etc/new", []byte(text), 0o644), os.Rename(n.dir+"/etc/new", n.file())))
			for begin, seen := time.Now(), false; time.Since(begin) < every; <-time.After(5 * time.Millisecond) {
				got := n.text()
				// Where both write at one moment, the two texts change places and change back, so one look proves nothing.
				if !strings.HasPrefix(got, text) && !n.comesBack(text) {
					lost++
				}
				if !seen && got == text+registryLines {
					seen = true
					back++
					if back <= 9 { // then it is a fight
						longest = max(longest, time.Since(begin))
					}
				}
			}
		}
		n.becomes(text + registryLines)
		state, _, err := nodestate.ReadHosts(n.dir + "/run")
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			compat.Say(t, "hosts", "another program takes the lines out again and again", fmt.Sprintf("within %d ms at first; less often where it goes on (%d of %d times in a minute), "+
				"and reported once", longest.Milliseconds(), back, times))
		}
		t.Logf("%d times rewritten, %d times the lines came back meanwhile, at first after %s; %d repairs", times, back, longest, state.Repairs)
		if lost > 0 {
			t.Errorf("in %d reads another's text is not there", lost)
		}
		if whole && (longest > time.Second*testutil.Slowness() || back < 9 || state.Repairs > times/2) {
			t.Error("the lines come back within a second at first, then less often")
		}
		if said := strings.Count(n.running.Output(), "another program keeps taking"); whole && said != 1 {
			t.Errorf("it is said %d times", said)
		}
	})
}

// cpuTime is what a process has used so far, all of its threads.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d threads: %v", len(tasks), err)
	}
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64) // ns on a CPU (Documentation/scheduler/sched-stats.rst)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n)
	}
	return sum
}

// memoryOf is a line of a process's status, in bytes.
func memoryOf(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), name+":")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
