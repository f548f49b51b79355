package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// transaction is what an ADD cannot do without.
const transaction = "a process that only makes the transaction"

// pair is a subject that does and one that undoes.
type pair struct {
	name     string
	do, undo *subject
}

func (b *bench) ours(p place, i int) pair {
	return b.oursWith(strings.TrimSpace("neardns "+p.name), p, b.folder(fmt.Sprintf("plugin%d", i)), nil)
}

// overlaid is ours with everything about pods' DNS settings: rules for all pods and for the pod's namespace, one that starts from
// the node's resolv.conf, annotations (one of them in YAML, one that is wrong), and the sandbox's file, which is as the runtime
// made it at each call.
func (b *bench) overlaid(p place) pair {
	dir := b.folder("overlaid")
	file := filepath.Join(dir, "sandboxes", "bench", "resolv.conf")
	b.must(os.MkdirAll(filepath.Dir(file), 0o755))                                                                      //nolint:gosec // as a runtime has it
	b.must(os.WriteFile(filepath.Join(dir, "host.conf"), []byte("nameserver 192.0.2.1\nsearch corp.example\n"), 0o644)) //nolint:gosec // as /etc/resolv.conf is
	made := b.oursWith("overlaid", p, dir, map[string]any{
		"resolvConfPaths": []string{filepath.Join(dir, "sandboxes", "{id}", "resolv.conf")}, "hostResolvConf": filepath.Join(dir, "host.conf"),
		"dns": map[string]any{
			"options":    []string{"timeout:2", "attempts:3"},
			"namespaces": map[string]any{"default": map[string]any{"policy": "ClusterFirst", "searches": []string{"team.example"}}, "other": map[string]any{"options": []string{"ndots:1"}}},
		},
	})
	made.do.before = func() error {
		return os.WriteFile(file, []byte("search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver "+clusterDNS.String()+"\noptions ndots:5\n"), 0o644) //nolint:gosec // as a runtime does
	}
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
		text, err := os.ReadFile(file)
		b.must(err)
		if !strings.Contains(string(text), "corp.example team.example pod.example") || !strings.Contains(string(text), "options ndots:2 edns0") {
			b.t.Fatalf("the overlay is not in the file:\n%s", text)
		}
		_, _, err = made.undo.run()
		b.must(err)
	})
	return made
}

// oursWith is our plugin on a pod with more in its configuration.
func (b *bench) oursWith(name string, p place, dir string, more map[string]any) pair {
	addresses := []string{clusterDNS.String()}
	if p.dual {
		addresses = append(addresses, "fd00:96::a")
	}
	// Proven, as on a node that has been up: the plugin reads the proof at every ADD.
	b.must(nodestate.ProofFile(filepath.Join(dir, "persist")).Write(nodestate.Proof{ClusterDNS: p.node.ClusterDNS(), Time: time.Now()}))
	given := map[string]any{"dns": map[string]any{"servers": addresses, "searches": []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"}, "options": []string{"ndots:5"}}}
	if more != nil {
		given["io.kubernetes.cri.pod-annotations"] = map[string]string{
			"neardns.io/dns-params": "search:\n- pod.example\noptions:\n- name: ndots\n  value: 2\n- name: edns0\n",
			"neardns.io/steer":      "perhaps",
		}
	}
	conf := pluginConf(dir, p.pod, map[string]any{"redirects": addresses, "steer": "always",
		"capabilities": map[string]any{"dns": true}, "runtimeConfig": given}) // always: ADD writes the pod's rules, too
	maps.Copy(conf, more)
	made := pair{name: name}
	for verb, to := range map[string]**subject{"ADD": &made.do, "DEL": &made.undo} {
		s, err := newSubject(p.node.Host, conf, b.installed(b.bin("neardns")))
		b.must(err)
		s.env = append(s.env, cniEnv(verb, p.pod)...)
		*to = s
	}
	// Once by hand, to see that it does what it is measured for.
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
		f, err := podfile.Read(podfile.Path(filepath.Join(dir, "state"), "bench", "eth0"))
		b.must(err)
		if len(f.In(podfile.Steered)) != len(addresses) {
			b.t.Fatalf("%s: the pod is not steered: %+v", made.name, f.Decisions)
		}
		_, _, err = made.undo.run()
		b.must(err)
	})
	return made
}

// installed returns a copy of a binary, which is what an installer leaves on a node. What the linker has just written lies in
// the page cache in single pages, and starts a tenth slower.
func (b *bench) installed(binary string) string {
	data, err := os.ReadFile(binary)
	b.must(err)
	to := filepath.Join(b.folder("installed"), filepath.Base(binary))
	if _, err := os.Stat(to); err != nil {
		b.must(os.WriteFile(to, data, 0o755)) //nolint:gosec // it is run
	}
	return to
}

func cniEnv(verb string, pod *testutil.Pod) []string {
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=bench", "CNI_NETNS=" + pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=7c1f",
	}
}

func (b *bench) bare(p place, bin string) pair {
	addresses := clusterDNS.String()
	if p.dual {
		addresses += ",fd00:96::a"
	}
	do, err := newSubject(p.node.Host, nil, bin, "apply", p.pod.Path(), addresses)
	b.must(err)
	undo, err := newSubject(p.node.Host, nil, bin, "remove", p.pod.Path(), addresses)
	b.must(err)
	return pair{strings.TrimSpace("bare " + p.name), do, undo}
}

func (b *bench) portmap(p place) pair {
	conf := pluginConf(b.folder("portmap"), p.pod, map[string]any{
		"type": "portmap", "backend": "nftables", "capabilities": map[string]any{"portMappings": true},
		"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}}},
	})
	made := pair{name: "portmap"}
	for verb, to := range map[string]**subject{"ADD": &made.do, "DEL": &made.undo} {
		s, err := newSubject(p.node.Host, conf, b.installed(b.bin("tools/portmap")))
		b.must(err)
		s.env = append(s.env, cniEnv(verb, p.pod)...)
		*to = s
	}
	p.node.Host.Do(func() {
		_, _, err := made.do.run()
		b.must(err)
	})
	if rules := p.node.Host.Run("nft", "list", "ruleset"); !strings.Contains(rules, "18080") {
		b.t.Fatalf("portmap made no nftables rules")
	}
	p.node.Host.Do(func() {
		_, _, err := made.undo.run()
		b.must(err)
	})
	return made
}

func (b *bench) pluginRows(wall, cpu map[string][]float64) {
	b.compare(pluginPart, "ADD with overlays, annotations and the sandbox's file", "the same without", "ms", wall["ADD overlaid"], wall["ADD neardns"], overlayLimit)
	b.compare(pluginPart, "ADD with overlays, annotations and the sandbox's file, CPU time", "the same without", "ms", cpu["ADD overlaid"], cpu["ADD neardns"], 0)
	for _, verb := range []string{"ADD", "DEL"} {
		ours := verb + " neardns"
		compare := func(subject, than, our, their string, limit float64) {
			b.compare(pluginPart, verb+subject, than, "ms", wall[our], wall[their], limit)
			b.compare(pluginPart, verb+subject+", CPU time", than, "ms", cpu[our], cpu[their], 0)
		}
		compare("", transaction, ours, verb+" bare", bareLimit)
		compare(", dual stack", transaction, ours+" dual stack", verb+" bare dual stack", bareLimit)
		compare("", "portmap, nftables, one port", ours, verb+" portmap", 1)
		for _, beside := range []string{"10,000 nft rules on the host", "10,000 iptables rules on the host", "10,000 nft rules in the pod"} {
			compare(" beside "+beside, "the same without", ours+" "+beside, ours, besideLimit)
		}
	}
}
