package endtoend

import (
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// With the overlay that steers what is not steered in the pod.
func (s *suite) testIntercept() {
	const overlay = "second-kube-dns"
	s.kubectl("apply", "-k", s.Bin+"/../install/overlays/"+overlay)
	s.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/neardns") // new pods get its Service
	s.must(s.AwaitProduct(s.t.Context()))
	s.testUnsteered(overlay)
}

// With the arrangement of NodeLocal DNSCache's enhancement, its Service and all. There is no fallback to be proven: kube-proxy has the
// cluster DNS address as long as nothing keeps it from that.
func (s *suite) testOnLink() {
	const overlay = "cluster-dns-on-link"
	s.kubectl("apply", "-k", s.Bin+"/../install/overlays/"+overlay)
	s.must(s.Rollout(s.t.Context(), "kube-system", "daemonset/neardns"))
	s.testUnsteered(overlay)
}

// testUnsteered: pods that are not steered and the node's own processes are answered by the cache, and by kube-dns when the agent
// hangs.
func (s *suite) testUnsteered(overlay string) {
	old := s.before[0]
	s.awaitAnsweredBy(cached, old)
	s.awaitAnsweredBy(cached, s.loaded[0])
	host := s.onePod("host", "", ", hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet")
	s.eventually(func() error { return s.kept(host) })
	s.kill(s.agent(), "STOP")
	s.awaitAnsweredBy(direct, old)
	s.eventually(func() error { return s.fresh(host) })
	s.kill(s.agent(), "CONT")
	s.awaitAnsweredBy(cached, old)
	s.eventually(func() error { return s.kept(host) })
	s.deletePod("host")
	s.must(s.UninstallProduct(s.t.Context(), overlay, false))
	s.wantAnsweredBy(direct, old, s.loaded[0])
}

// kept reports whether another program keeps answers for a pod whose address is the node's, by their TTLs: kube-dns gives all of them 30 s.
func (s *suite) kept(p pod) error {
	ttls, err := s.ttls(p)
	if err == nil && ttls[1] >= ttls[0] {
		err = fmt.Errorf("TTLs %v: nobody keeps the answers of pod %s", ttls, p.name)
	}
	return err
}

// fresh is its contrary.
func (s *suite) fresh(p pod) error {
	ttls, err := s.ttls(p)
	if err == nil && ttls[1] != ttls[0] {
		err = fmt.Errorf("TTLs %v: somebody keeps the answers of pod %s", ttls, p.name)
	}
	return err
}

// ttls are those of two answers for one name, more than a second apart.
func (s *suite) ttls(p pod) (out []uint32, err error) {
	q := question{fmt.Sprintf("t%d.who.cluster.local.", time.Now().UnixNano()), dns.TypeA}
	for range 2 {
		r, err := ask(p.ns, server(true), "udp", q)
		if err != nil {
			return nil, err
		}
		if len(r.Answer) != 1 {
			return nil, fmt.Errorf("%s: %s", q, r)
		}
		out = append(out, r.Answer[0].Header().Ttl)
		if len(out) == 1 {
			pass(1500 * time.Millisecond)
		}
	}
	return out, nil
}
