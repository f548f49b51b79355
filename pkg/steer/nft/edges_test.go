package nft_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Answers over UDP beyond the MTU reach a pod without conntrack, by the agent and by the fallback, in both families.
func TestLargeAnswersWithoutConntrack(t *testing.T) {
	cells(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		if got := pod.Run("nft", "list", "ruleset"); strings.Contains(got, "ct ") {
			t.Fatalf("the pod table uses conntrack:\n%s", got)
		}
		large := func(who string) {
			t.Helper()
			for _, server := range append(r.ClusterDNS(), r.Local()...) {
				for _, size := range []int{1400, 1500, 3000, 9000} {
					answer, err := testutil.Ask(pod.NetNS, server, fmt.Sprintf("size-%d.cluster.local", size), dns.TypeTXT, "udp", testutil.AskOptions{EDNS: 65000})
					if err != nil || answer.Who != who || answer.Size < size {
						t.Errorf("%d bytes from %s: %v, %v; want %s's", size, server, answer, err, who)
					}
				}
				for _, size := range []int{9000, 60000} { // and over TCP
					answer, err := testutil.Ask(pod.NetNS, server, fmt.Sprintf("size-%d.cluster.local", size), dns.TypeTXT, "tcp", testutil.AskOptions{})
					if err != nil || answer.Who != who || answer.Size < size {
						t.Errorf("%d bytes over tcp from %s: %v, %v; want %s's", size, server, answer, err, who)
					}
				}
			}
		}
		large("KUBEDNS")
		r.Serve()
		large("AGENT")
		testutil.WantNoConntrack(t, pod.NetNS)
	})
}

// If several sockets share one address (SO_REUSEPORT) and one is closed, the others get all queries.
func TestSocketGroups(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Addresses()
	member := func(who string) *dns.Server {
		t.Helper()
		var pc net.PacketConn
		var err error
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		}}
		r.Node.Host.Do(func() {
			pc, err = config.ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(redirect4.Steering, 53).String())
		})
		must(t, err)
		started := make(chan struct{})
		server := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			a := new(dns.Msg).SetReply(m)
			a.Answer = append(a.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{who}})
			_ = w.WriteMsg(a)
		})}
		go func() { _ = server.ActivateAndServe() }()
		<-started
		return server
	}
	first, second := member("FIRST"), member("SECOND")
	t.Cleanup(func() { _ = second.Shutdown() })
	must(t, r.Lease.Renew(redirect4.Steering, steer.UDP))
	heard := map[string]int{}
	ask := func() {
		t.Helper()
		answer, err := testutil.Ask(pod.NetNS, r.ClusterDNS()[0], "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{})
		must(t, err)
		heard[answer.Who]++
	}
	for range 64 {
		ask()
	}
	if heard["FIRST"] == 0 || heard["SECOND"] == 0 || heard["KUBEDNS"] > 0 {
		t.Errorf("both members serve: %v", heard)
	}
	must(t, first.Shutdown())
	clear(heard)
	for range 64 {
		ask()
	}
	if heard["SECOND"] != 64 {
		t.Errorf("one member left: %v", heard)
	}
}

func (r *nftRig) services() []testutil.Service {
	var out []testutil.Service
	for i, d := range r.Host.Redirects {
		out = append(out, testutil.DNSService(d.ClusterDNS, r.Node.KubeDNSAddrs()[i])...)
	}
	return out
}

// A Service without endpoints is refused at once also through the fallback, in both families.
func TestServiceWithoutEndpoints(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		services := r.services()
		for i := range services {
			services[i].Endpoints = nil
		}
		r.Node.Proxy.Set(services...)
		for _, server := range r.ClusterDNS() {
			c, err := testutil.Dial(pod.NetNS, "udp", server, testutil.AskOptions{})
			must(t, err)
			if _, err := c.Ask("a.cluster.local", dns.TypeA); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s over udp: %v, want %v", server, err, syscall.ECONNREFUSED)
			}
			c.Close()
		}
	})
}

// Packets with sources that no pod can have cause no loop, and do not reach the agent without a lease.
func TestSpoofedSources(t *testing.T) {
	mode(t, testutil.IPTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		for _, where := range []string{"all", "default", pod.HostInterface} {
			r.Node.Host.Sysctl("net.ipv4.conf."+where+".rp_filter", "0")
		}
		for _, sources := range [][]netip.Addr{
			{addr("127.0.0.1"), addr("::1")},
			{redirect4.Steering, redirect6.Steering},
			{local4.Address, local6.Address},
			r.Node.ClusterDNS(),
		} {
			r.withoutAnswer(pod.NetNS, "KUBEDNS", sources)
		}
		// The prober's addresses have no effect on another interface than its own.
		r.Addresses()
		r.Listen()
		r.withoutAnswer(pod.NetNS, "KUBEDNS", []netip.Addr{steer.ProbeSource4, steer.ProbeSource6})
		if n := r.Agent.Questions(""); n > 0 {
			t.Errorf("%d questions from a pod entered without a lease", n)
		}
		r.Renew()
		for _, sources := range [][]netip.Addr{{addr("127.0.0.1"), addr("::1")}, {redirect4.Steering, redirect6.Steering}} {
			r.withoutAnswer(pod.NetNS, "AGENT", sources)
		}
		r.Want("AGENT", pod.NetNS, "afterwards", r.ClusterDNS()...)
	})
}

// withoutAnswer sends queries with forged sources from a pod, through a raw socket, and then checks that ordinary queries are answered
// and that no packet looped. It expects no answers to the forged ones: those would go to the forged source.
func (r *nftRig) withoutAnswer(pod *testutil.NetNS, who string, sources []netip.Addr) {
	r.t.Helper()
	before, _ := r.nft.Counters()
	for i, d := range r.Host.Redirects {
		q := new(dns.Msg).SetQuestion("forged.cluster.local.", dns.TypeA)
		raw, err := q.Pack()
		must(r.t, err)
		for range 5 {
			sendForged(r.t, pod, sources[i], d.ClusterDNS, raw)
		}
	}
	// A packet that loops is counted again and again while these queries are answered.
	const more = 3 // each: two servers
	for range more {
		r.Want(who, pod, "after forged sources", r.ClusterDNS()...)
	}
	after, err := r.nft.Counters()
	must(r.t, err)
	for name, c := range after {
		if d := c.Packets - before[name].Packets; d > 5*2+2*2*more {
			r.t.Errorf("from %v: %d packets counted as %s for 10 sent", sources, d, name)
		}
	}
}

// sendForged sends one UDP datagram with any source.
func sendForged(t testing.TB, ns *testutil.NetNS, from, to netip.Addr, payload []byte) {
	t.Helper()
	udp := make([]byte, 8, 8+len(payload))
	udp[0], udp[1], udp[3] = 0x13, 0x88, 53 // port 5000 to 53
	length := 8 + len(payload)
	udp[4], udp[5] = byte(length>>8), byte(length)
	udp = append(udp, payload...)
	sum := checksum(from, to, udp)
	udp[6], udp[7] = byte(sum>>8), byte(sum)
	ns.Do(func() {
		if to.Is4() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
			must(t, err)
			defer func() { _ = unix.Close(fd) }()
			src, dst := from.As4(), to.As4()
			head := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0}
			packet := append(append(append(head, src[:]...), dst[:]...), udp...)
			packet[2], packet[3] = byte(len(packet)>>8), byte(len(packet))
			must(t, unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst}))
			return
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)
		must(t, err)
		defer func() { _ = unix.Close(fd) }()
		src, dst := from.As16(), to.As16()
		head := []byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), 17, 64}
		packet := append(append(append(head, src[:]...), dst[:]...), udp...)
		must(t, unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: dst}))
	})
}

// checksum is UDP's, over the pseudo header too.
func checksum(from, to netip.Addr, udp []byte) uint16 {
	data := append(append(from.AsSlice(), to.AsSlice()...), 0, 17, byte(len(udp)>>8), byte(len(udp)))
	data = append(data, udp...)
	if len(data)%2 == 1 {
		data = append(data, 0)
	}
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(data[i])<<8 | uint32(data[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // folded
}
