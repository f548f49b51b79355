package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
)

// chosen reports whether a step is wanted.
func chosen(t *testing.T, name string) bool {
	t.Helper()
	ok, err := regexp.MatchString(*onlySteps, name)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// pod is one that runs.
type pod struct {
	name  string
	addrs []netip.Addr // IPv4 first
	ns    string       // path of its netns, as the machine finds it
}

func (p pod) addr(is4 bool) netip.Addr {
	for _, a := range p.addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// pods are the running ones with a label, once all are ready and of the number that is wanted.
func (s *suite) pods(label string, want int) []pod {
	s.t.Helper()
	var out []pod
	s.eventually(func() error {
		var err error
		out, err = s.tryPods(label)
		if err == nil && len(out) != want {
			err = fmt.Errorf("%d pods of %s are ready, want %d", len(out), label, want)
		}
		return err
	})
	return out
}

func (s *suite) tryPods(label string) ([]pod, error) {
	text, err := s.Kubectl(s.t.Context(), "get", "pods", "-o", "json", "-l", label)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				DeletionTimestamp string
			}
			Spec   struct{ HostNetwork bool }
			Status struct {
				PodIPs     []struct{ IP netip.Addr }
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("read pods: %w", err)
	}
	spaces, err := s.namespaces()
	if err != nil {
		return nil, err
	}
	var out []pod
	for _, i := range list.Items {
		ready := false
		for _, c := range i.Status.Conditions {
			ready = ready || c.Type == "Ready" && c.Status == "True"
		}
		if !ready || i.Metadata.DeletionTimestamp != "" {
			continue
		}
		p := pod{name: i.Metadata.Name}
		for _, ip := range i.Status.PodIPs {
			p.addrs = append(p.addrs, ip.IP)
		}
		if p.ns = s.hostNS(); !i.Spec.HostNetwork {
			if p.ns = spaces[p.addr(true)]; p.ns == "" {
				return nil, fmt.Errorf("no netns has the address of pod %s", p.name)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// glob are the files of all nodes, as the machine finds them.
func (s *suite) glob(pattern string) (out []string, err error) {
	for _, n := range s.All() {
		files, err := filepath.Glob(n.Path(pattern))
		if err != nil {
			return nil, err
		}
		out = append(out, files...)
	}
	return out, nil
}

// hostNS is the first node's own network namespace.
func (s *suite) hostNS() string { return fmt.Sprintf("/proc/%d/ns/net", s.PID()) }

// namespaces are the pods' network namespaces by the IPv4 address of their eth0.
func (s *suite) namespaces() (map[netip.Addr]string, error) {
	files, err := s.glob("/run/netns/*")
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]string{}
	for _, file := range files {
		addrs, err := addresses(file)
		if err != nil {
			continue // it is being made or taken away
		}
		for _, a := range addrs {
			if at, ok := netip.AddrFromSlice(a.IP); ok {
				out[at.Unmap()] = file
			}
		}
	}
	return out, nil
}

func addresses(file string) ([]netlink.Addr, error) {
	ns, err := netns.GetFromPath(file)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	return h.AddrList(eth0, netlink.FAMILY_V4)
}

// onePod makes a pod of the one image and waits until it is ready; spec is what its manifest has beyond that.
func (s *suite) onePod(name, annotations, spec string) pod {
	s.t.Helper()
	s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}, annotations: {%[2]s}}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: main, image: "neardns.test/pod:1", imagePullPolicy: Never}]%[3]s}}`, name, annotations, spec))
	return s.pods("app="+name, 1)[0]
}

func (s *suite) deletePod(name string) {
	s.t.Helper()
	s.kubectl("delete", "pod", name, "--wait", "--timeout=1m")
}

// resolvConf is what a pod's processes read.
func (s *suite) resolvConf(name string) string {
	s.t.Helper()
	return s.kubectl("exec", name, "--", "/podimage", "resolvconf")
}

// file is what the plugin noted of a pod; nil where it noted nothing.
func (s *suite) file(name string) *podfile.File {
	s.t.Helper()
	files, err := s.glob(filepath.Join(nodestate.DefaultStateDir, "pods/*.json"))
	s.must(err)
	for _, path := range files {
		f, err := podfile.Read(path)
		if !errors.Is(err, os.ErrNotExist) {
			s.must(err)
		}
		if f.PodName == name {
			return &f
		}
	}
	return nil
}

// inState reports whether every redirect of a pod is in a state.
func (s *suite) inState(p pod, want podfile.State) error {
	f := s.file(p.name)
	if f == nil || len(f.Decisions) != 2 {
		return fmt.Errorf("pod %s has no file with two redirects: %+v", p.name, f)
	}
	for _, d := range f.Decisions {
		if d.State != want {
			return fmt.Errorf("pod %s: %s is %s (%s), want %s", p.name, d.Redirect.ClusterDNS, d.State, d.Reason, want)
		}
	}
	return nil
}

// nameservers are those of a resolv.conf.
func nameservers(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			out = append(out, f[1])
		}
	}
	return out
}
