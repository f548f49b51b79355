package kubeletdns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// kubelet calls the kubelet's code. It is not for concurrent use.
type kubelet struct {
	ctx      context.Context
	recorder *record.FakeRecorder
	fd       int // the node's resolv.conf: the kubelet reads a path, so it gets one that costs no disk
}

func newKubelet(tb testing.TB) *kubelet {
	tb.Helper()
	fd, err := unix.MemfdCreate("resolv.conf", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	return &kubelet{
		// It logs each truncation, to stderr by default.
		ctx:      klog.NewContext(tb.Context(), logr.Discard()),
		recorder: record.NewFakeRecorder(16),
		fd:       fd,
	}
}

// answer is what the kubelet made of a pod.
type answer struct {
	resolvconf.Settings
	events string // its events for the pod
}

// form lets the kubelet form a pod's settings.
func (k *kubelet) form(n node, policy v1.DNSPolicy, config *v1.PodDNSConfig) (answer, error) {
	if err := unix.Ftruncate(k.fd, 0); err != nil {
		return answer{}, fmt.Errorf("empty resolv.conf: %w", err)
	}
	if _, err := unix.Pwrite(k.fd, []byte(n.file), 0); err != nil && n.file != "" {
		return answer{}, fmt.Errorf("write resolv.conf: %w", err)
	}
	c := dns.NewConfigurer(k.recorder, nil, nil, netIPs(n.clusterDNS), n.clusterDomain, fmt.Sprintf("/proc/self/fd/%d", k.fd))
	spec := &v1.Pod{}
	spec.Namespace = namespace
	spec.Spec = v1.PodSpec{DNSPolicy: policy, DNSConfig: config}
	got, err := c.GetPodDNS(k.ctx, spec)
	if err != nil {
		return answer{}, err
	}
	a := answer{Settings: resolvconf.Settings{Nameservers: got.Servers, Searches: got.Searches, Options: got.Options}}
	for len(k.recorder.Events) > 0 {
		a.events += <-k.recorder.Events + "\n"
	}
	return a, nil
}

// notes are the events in our words.
func (a answer) notes() map[resolvconf.Code]bool {
	return map[resolvconf.Code]bool{
		resolvconf.NameserversCut: strings.Contains(a.events, "Nameserver limits were exceeded"),
		resolvconf.SearchesCut:    strings.Contains(a.events, "Search Line limits were exceeded"),
	}
}

func netIPs(addrs []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range addrs {
		out = append(out, a.AsSlice())
	}
	return out
}
