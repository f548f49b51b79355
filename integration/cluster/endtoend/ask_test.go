package endtoend

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/cluster/node"
)

// enter runs f in a network namespace; sockets that f opens stay there.
func enter(path string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		there, err := netns.GetFromPath(path)
		if err != nil {
			done <- err
			return
		}
		defer there.Close()
		if err := unix.Setns(int(there), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		err = f()
		if unix.Setns(int(home), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

// question is what one is about.
type question struct {
	name  string
	qtype uint16
}

func (q question) String() string { return q.name + " " + dns.TypeToString[q.qtype] }

// ask sends queries once, from a namespace, as a stub resolver does.
func ask(ns string, server netip.Addr, network string, q question) (*dns.Msg, error) {
	var conn net.Conn
	err := enter(ns, func() (err error) {
		conn, err = net.DialTimeout(network, netip.AddrPortFrom(server, 53).String(), 3*time.Second)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := new(dns.Msg).SetQuestion(q.name, q.qtype)
	m.SetEdns0(1232, false)
	client := dns.Client{Net: network, Timeout: 3 * time.Second}
	r, _, err := client.ExchangeWithConn(m, &dns.Conn{Conn: conn, UDPSize: 1232})
	if err != nil {
		return nil, fmt.Errorf("%s over %s at %s: %w", q, network, server, err)
	}
	return r, nil
}

// who is whom kube-dns answered.
type who string

const (
	direct who = "kube-dns itself"
	cached who = "the cache"
)

// tryWho queries a name that reports it, over one protocol and family.
func tryWho(p pod, name, network string, is4 bool) (who, error) {
	r, err := ask(p.ns, server(is4), network, question{name + ".who.cluster.local.", dns.TypeTXT})
	if err != nil {
		return "", err
	}
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 {
		return "", fmt.Errorf("%s: %s with %d records", name, dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	txt, ok := r.Answer[0].(*dns.TXT)
	if !ok || len(txt.Txt) != 1 {
		return "", fmt.Errorf("%s: %s is no answer", name, r.Answer[0])
	}
	client, err := netip.ParseAddr(txt.Txt[0])
	if err != nil {
		return "", err
	}
	if slices.Contains(p.addrs, client) {
		return direct, nil
	}
	return cached, nil
}

func server(is4 bool) netip.Addr {
	if is4 {
		return node.KubeDNS()[0]
	}
	return node.KubeDNS()[1]
}

// askedBy sends queries over both protocols and families. Names are queried once, so that nothing is kept of another step.
func (s *suite) askedBy(p pod) (map[string]who, error) {
	out := map[string]who{}
	for _, network := range []string{"udp", "tcp"} {
		for _, is4 := range []bool{true, false} {
			w, err := tryWho(p, fmt.Sprintf("t%d", time.Now().UnixNano()), network, is4)
			if err != nil {
				return nil, fmt.Errorf("pod %s: %w", p.name, err)
			}
			out[fmt.Sprintf("%s to %s", network, server(is4))] = w
		}
	}
	return out, nil
}

// wantAnsweredBy holds who answers a pod, from now on.
func (s *suite) wantAnsweredBy(want who, pods ...pod) {
	s.t.Helper()
	for _, p := range pods {
		got, err := s.askedBy(p)
		if err != nil {
			s.t.Error(err)
		}
		for way, by := range got {
			if by != want {
				s.t.Errorf("pod %s, %s: answered by %s, want %s", p.name, way, by, want)
			}
		}
	}
}

// awaitAnsweredBy waits until the wanted server answers a pod, in every way. Until then a query may go without an answer.
func (s *suite) awaitAnsweredBy(want who, p pod) {
	s.t.Helper()
	s.eventually(func() error {
		got, err := s.askedBy(p)
		for way, by := range got {
			if by != want {
				return fmt.Errorf("pod %s, %s: answered by %s, want %s", p.name, way, by, want)
			}
		}
		return err
	})
}

// content is an answer without what may differ between two: order and TTL.
func content(r *dns.Msg) string {
	lines := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range append(slices.Clone(r.Answer), r.Ns...) {
		rr := dns.Copy(rr)
		rr.Header().Ttl = 0
		if soa, ok := rr.(*dns.SOA); ok {
			soa.Serial = 0
		}
		lines = append(lines, rr.String())
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}
