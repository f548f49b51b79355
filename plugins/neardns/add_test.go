package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// ptpNode is a node with one pod on it, ready for ADD.
func ptpNode(t *testing.T, families testutil.Families) (*cri, *testutil.Node, *testutil.Pod) {
	t.Helper()
	testutil.RequireRoot(t)
	node := testutil.NewNode(t, testutil.Options{Families: families, Attach: testutil.PTP, NoDNS: true, Name: "plugin"})
	return newCRI(t, node.Host), node, node.AddPod("pod")
}

func TestAddSteersAndDelRemovesAll(t *testing.T) {
	for _, tc := range []struct {
		families  testutil.Families
		redirects []any
		locals    []string
		want      []steer.Redirect
	}{
		{testutil.IPv4, []any{"10.96.0.10"}, nil, []steer.Redirect{redirect4}},
		{testutil.IPv6, []any{"fd00:96::a"}, []string{"fd00:90de:d95::a"}, []steer.Redirect{redirect6}},
		{testutil.Dual, []any{"10.96.0.10", "fd00:96::a"}, []string{"169.254.20.10"}, []steer.Redirect{redirect4, redirect6}},
		{testutil.IPv4, []any{object{"clusterDNS": "10.96.0.10", "steering": "169.254.20.99"}}, nil, []steer.Redirect{redirect("10.96.0.10", "169.254.20.99")}},
	} {
		t.Run(fmt.Sprintf("%s/%v", tc.families, tc.redirects), func(t *testing.T) {
			r, node, pod := ptpNode(t, tc.families)
			add := addRequest("c1", pod, object{"redirects": tc.redirects, "localAddresses": tc.locals, "runtimeConfig": object{"dns": object{
				"Servers": []string{tc.want[0].ClusterDNS.String()}, "Searches": []string{"a.b"}, "Options": []string{"ndots:5"},
			}}})
			r.must(add)
			verify(t, pod.NetNS, steer.Pod{Redirects: tc.want})
			var locals []steer.Local
			for _, a := range tc.locals {
				locals = append(locals, steer.Local{Address: netip.MustParseAddr(a), ClusterDNS: tc.want[0].ClusterDNS})
			}
			verify(t, node.Host, steer.Host{Redirects: tc.want, Locals: locals, Uplinks: []string{"eth0"}})
			var decisions []podfile.Decision
			for _, x := range tc.want {
				decisions = append(decisions, podfile.Decision{Redirect: x, State: podfile.Steered})
			}
			want := podfile.File{
				Version: 1, ContainerID: "c1", IfName: "eth0", Network: "pods", NetNS: pod.Path(), NetNSInode: pod.Inode(),
				PodName: "web-0", PodNamespace: "shop", PodUID: "7c1f", Addresses: pod.Addrs, HostInterface: pod.HostInterface,
				Nameservers: []string{tc.want[0].ClusterDNS.String()}, Searches: []string{"a.b"}, Options: []string{"ndots:5"},
				Decisions: decisions,
			}
			want.DNS = &podfile.DNS{State: podfile.AsGiven, Settings: resolvconf.Settings{Nameservers: want.Nameservers, Searches: want.Searches,
				Options: want.Options}}
			testutil.Equal(t, "pod file", want, r.file("c1"))
			r.must(add.with("CHECK"))
			before := ruleset(node.Host)
			r.must(add.with("DEL"))
			wantNoTable(t, pod.NetNS)
			r.wantFiles(0)
			testutil.Equal(t, "the host's rules after DEL", before, ruleset(node.Host))
		})
	}
}

// A switch that takes the pod's own link for an uplink would send its queries to kube-dns. Such a pod is not steered, whatever put the link
// among the uplinks, and the switch is not changed.
func TestPodOnALinkThatTheSwitchHoldsForAnUplink(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.Dual)
	redirects := []steer.Redirect{redirect4, redirect6}
	host := steer.Host{Redirects: redirects, Uplinks: []string{"eth0", pod.HostInterface}}
	var err error
	node.Host.Do(func() {
		rules, openErr := nft.Open(-1)
		if err = openErr; err == nil {
			err = errors.Join(rules.Apply(host), rules.Close())
		}
	})
	testutil.Must(t, err)
	r.must(addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}}))
	for _, d := range r.file("c1").Decisions {
		if d.State != podfile.LeftAlone || !strings.Contains(d.Reason, pod.HostInterface+" also leads away from the node") {
			t.Errorf("%+v: want it left alone, with the link in the reason", d)
		}
	}
	wantNoTable(t, pod.NetNS)
	verify(t, node.Host, host)
}

// A redirect of a family that the pod does not have is not steered, the other is.
func TestFamilyThatThePodLacks(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv6)
	r.must(addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}}))
	f := r.file("c1")
	if f.Decisions[0].State != podfile.LeftAlone || f.Decisions[0].Reason == "" || f.Decisions[1].State != podfile.Steered {
		t.Errorf("decisions %+v", f.Decisions)
	}
	verify(t, pod.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect6}})
}

func TestAddTwice(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.Dual)
	add := addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}})
	first := r.must(add)
	inPod, onHost := ruleset(pod.NetNS), ruleset(node.Host)
	second := r.must(add)
	testutil.Equal(t, "result", first.Stdout, second.Stdout)
	testutil.Equal(t, "pod's rules", inPod, ruleset(pod.NetNS))
	testutil.Equal(t, "host's rules", onHost, ruleset(node.Host))
	r.wantFiles(1)
}

// A second ADD that decides otherwise undoes the first one.
func TestAddTwiceTurnedOff(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	add := addRequest("c1", pod, nil)
	r.must(add)
	add.Conf["steer"] = "off"
	r.must(add)
	wantNoTable(t, pod.NetNS)
	r.wantDecision("c1", podfile.LeftAlone, "")
}

// A new pod is not steered at ADD, and nothing of the host changes.
func TestUntriedAtAdd(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.Dual)
	add := addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}, "steer": nil})
	states := func() string {
		d := r.file("c1").Decisions
		return fmt.Sprint(d[0].State, " ", d[1].State)
	}
	r.must(add)
	if states() != "pending pending" {
		t.Errorf("without proof: %s", states())
	}
	wantNoTable(t, pod.NetNS)
	wantNoTable(t, node.Host)
	r.must(add.with("CHECK"))
	// A verified fallback is not enough: the pod waits for its trial.
	verified := nodestate.Proof{ClusterDNS: []netip.Addr{redirect6.ClusterDNS}, Time: time.Unix(1_700_000_000, 0)}
	testutil.Must(t, nodestate.ProofFile(r.persist).Write(verified))
	r.must(add)
	if d := r.file("c1").Decisions; states() != "pending pending" || !d[0].Untried || !d[1].Untried {
		t.Errorf("with a verified fallback for IPv6: %+v", d)
	}
	// If the agent has steered the pod since then, a second ADD makes it pending again: the pod is new.
	testutil.Must(t, podfile.Amend(r.state, "c1", "eth0", func(f *podfile.File) bool {
		f.Decisions[1] = podfile.Decision{Redirect: redirect6, State: podfile.Steered}
		return true
	}))
	table, err := nft.Open(pod.FD())
	testutil.Must(t, err)
	defer table.Close()
	testutil.Must(t, table.Apply(steer.Pod{Redirects: []steer.Redirect{redirect6}}))
	r.must(add)
	wantNoTable(t, pod.NetNS)
	// If the record of the fallback check cannot be read, nothing is verified, and the reason names it.
	testutil.Must(t, os.WriteFile(nodestate.ProofFile(r.persist).Path, []byte("{"), 0o644))
	r.must(add)
	if states() != "pending pending" || !strings.Contains(r.file("c1").Decisions[0].Reason, nodestate.ProofFile(r.persist).Path) {
		t.Errorf("with a torn proof: %s, %q", states(), r.file("c1").Decisions[0].Reason)
	}
	wantNoTable(t, pod.NetNS)
}

func TestOptOut(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.Dual)
	other := node.AddPod("other")
	redirects := []string{"10.96.0.10", "fd00:96::a"}
	r.must(addRequest("c2", other, object{"redirects": redirects}))
	before := ruleset(node.Host)
	add := addRequest("c1", pod, object{"redirects": redirects, "runtimeConfig": object{keyAnnotations: object{overlay.AnnotationSteer: "false"}}})
	r.must(add)
	r.must(add)
	wantNoTable(t, pod.NetNS)
	if f := r.file("c1"); !f.OptOut || f.Decisions[0].State != podfile.LeftAlone {
		t.Errorf("file %+v", f)
	}
	rules := ruleset(node.Host)
	for _, a := range pod.Addrs {
		if !strings.Contains(rules, a.String()) {
			t.Errorf("%s is not exempt:\n%s", a, rules)
		}
	}
	r.must(add.with("CHECK"))
	r.must(add.with("DEL"))
	testutil.Equal(t, "the host's rules after DEL", before, ruleset(node.Host))
}

// A pod may have two attachments, of two networks (with Multus) or of one network. They share the netns's one pod table.
func TestTwoAttachmentsOfOnePod(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.Dual)
	eth0 := addRequest("c1", pod, nil)
	net1 := addRequest("c1", pod, object{"redirects": []string{"fd00:96::a"}, "name": "second"})
	net1.IfName = "net1"
	r.must(eth0)
	r.must(net1)
	both := steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}
	verify(t, pod.NetNS, both)
	r.must(eth0.with("CHECK"))
	r.must(net1.with("CHECK"))
	r.must(eth0)
	verify(t, pod.NetNS, both)
	r.must(net1.with("DEL"))
	verify(t, pod.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
	r.must(eth0.with("CHECK"))
	r.must(eth0.with("DEL"))
	wantNoTable(t, pod.NetNS)
}

func TestParallelAdds(t *testing.T) {
	testutil.RequireRoot(t)
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP, NoDNS: true, Name: "storm"})
	r := newCRI(t, node.Host)
	const n = 48
	pods := make([]*testutil.Pod, n)
	for i := range pods {
		pods[i] = node.AddPod(fmt.Sprintf("p%d", i))
	}
	all := func(verb string, optOut bool) {
		var wg sync.WaitGroup
		limit := make(chan struct{}, 8) // processes at once: enough to collide, few enough for a small machine within an ADD's 5 s
		for i, pod := range pods {
			wg.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				q := addRequest(fmt.Sprintf("c%d", i), pod, nil).with(verb)
				if optOut && i%2 == 1 {
					q.Conf["runtimeConfig"] = object{keyAnnotations: object{overlay.AnnotationSteer: "false"}}
				}
				if out := r.call(q); out.Err != nil {
					t.Errorf("%s %d: %v", verb, i, out.Err)
				}
			})
		}
		wg.Wait()
	}
	all("ADD", false)
	verify(t, node.Host, steer.Host{Redirects: []steer.Redirect{redirect4}, Uplinks: []string{"eth0"}})
	alone := ruleset(node.Host)
	for i, pod := range pods {
		verify(t, pod.NetNS, steer.Pod{Redirects: []steer.Redirect{redirect4}})
		r.wantDecision(fmt.Sprintf("c%d", i), podfile.Steered, "")
	}
	all("ADD", true) // every second one has opted out by now
	all("DEL", false)
	testutil.Equal(t, "host's rules after all is over", alone, ruleset(node.Host))
	r.wantFiles(0)
	for _, pod := range pods {
		wantNoTable(t, pod.NetNS)
	}
}

// Without CAP_NET_ADMIN the kernel refuses every rule, as one without nf_tables does.
func TestKernelRefuses(t *testing.T) {
	r, node, pod := ptpNode(t, testutil.IPv4)
	r.wrap = []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
	add := addRequest("c1", pod, nil)
	wantPassed(t, r.must(add), add)
	r.wantDecision("c1", podfile.LeftAlone, "operation not permitted")
	r.must(add.with("CHECK"))
	r.must(request{Verb: "STATUS"})
	add.Conf["onUnsupported"] = "fail"
	r.fails(add, codeNotSteer)
	r.fails(request{Verb: "STATUS", Conf: object{"onUnsupported": "fail"}}, 50)
	r.must(add.with("DEL"))
	wantNoTable(t, pod.NetNS)
	wantNoTable(t, node.Host)
	r.wantFiles(0)
}

// wantPassed checks that prevResult came out as it went in, byte for byte.
func wantPassed(t testing.TB, out reply, q request) {
	t.Helper()
	want, err := json.Marshal(q.Conf["prevResult"])
	testutil.Must(t, err)
	testutil.Equal(t, "result", string(want), out.Stdout)
}
