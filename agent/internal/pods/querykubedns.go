package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// maxQueried is the maximum number of pods from which QueryKubeDNS queries. It is more than one, because a pod may have a policy of its
// own, or be terminating.
const maxQueried = 3

// QueryKubeDNS queries clusterDNS over UDP for name's address from the netns of up to maxQueried steered pods, and so from their addresses
// and by their routes. It returns nil at the first answer with NOERROR or NXDOMAIN, and an error once all queries failed. sent is false,
// with a nil error, if no steered pod's netns could be used. Call it only without a lease: the queries take the pods' own path, so under
// a lease the agent would answer them.
func (p *Pods) QueryKubeDNS(ctx context.Context, clusterDNS netip.Addr, name string) (sent bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns := p.conns(clusterDNS)
	answers := make(chan error, len(conns))
	for _, c := range conns {
		go func() { answers <- lookUp(ctx, c, name, clusterDNS.Is4()) }() // ends with ctx at the latest
	}
	for range conns {
		one := <-answers
		if one == nil {
			return true, nil
		}
		err = errors.Join(err, one)
	}
	return len(conns) > 0, err
}

// conns opens one UDP socket to clusterDNS in the netns of each of up to maxQueried steered pods.
func (p *Pods) conns(clusterDNS netip.Addr) []net.Conn {
	files, _ := p.read() // Reconcile reports unreadable files
	var out []net.Conn
	for _, f := range files {
		if len(out) == maxQueried {
			break
		}
		if !slices.ContainsFunc(f.In(podfile.Steered), func(r steer.Redirect) bool { return r.ClusterDNS == clusterDNS }) {
			continue
		}
		ns, err := enter(f)
		if err != nil {
			continue
		}
		_ = hostnet.InNetNS(int(ns.Fd()), func() error { // after an error, this pod is skipped
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(clusterDNS, 53)))
			if err == nil {
				out = append(out, conn)
			}
			return err
		})
		_ = ns.Close() // was opened only to enter the netns
	}
	return out
}

// lookUp sends one query over conn, which it closes, and returns nil for any answer with NOERROR or NXDOMAIN. It sets the CD bit (RFC
// 4035, section 3.2.2): the kernel program does not answer such queries, and non-validating servers ignore the bit. So an answer comes
// from the server that pods' packets reach.
func lookUp(ctx context.Context, conn net.Conn, name string, ipv4 bool) error {
	defer conn.Close() //nolint:errcheck // the result is known
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	kind := dns.TypeAAAA
	if ipv4 {
		kind = dns.TypeA
	}
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	m.CheckingDisabled = true
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn})
	switch {
	case err != nil:
		return fmt.Errorf("query from a pod: %w", err)
	case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
		return fmt.Errorf("query from a pod: %s", dns.RcodeToString[answer.Rcode])
	}
	return nil
}
