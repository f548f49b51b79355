package kubedns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// kubeadm is what kubeadm writes, from 1.17 on; kind and most others have the same.
const kubeadm = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
`

// with puts lines into kubeadm's server block, before forward.
func with(lines string) string {
	return strings.Replace(kubeadm, "    forward .", lines+"\n    forward .", 1)
}

func forwarding(to string) string {
	return strings.Replace(kubeadm, "forward . /etc/resolv.conf {\n       max_concurrent 1000\n    }", to, 1)
}

const sent = "forward . /etc/resolv.conf, line 13"

func TestRead(t *testing.T) {
	golden.Cases(t, "testdata/corefiles/*.txt", func(_ *testing.T, sections map[string]string) string {
		v := Read(sections["corefile"], "cluster.local")
		return fmt.Sprintf("node %t: %s %v\n", v.Node, v.Why, v.Names)
	})
	for _, tc := range []struct {
		name, text string
		node       bool
		why        string
		names      []string
	}{
		{"kubeadm", kubeadm, true, sent, nil},
		{"kubeadm, by Windows, no newline at its end", strings.ReplaceAll(strings.TrimSuffix(kubeadm, "\n"), "\n", "\r\n"), true, sent, nil},
		{"a zone of another plugin, too", kubeadm + "hostname.bind:5353 {\n    chaos\n    template ANY ANY\n}", false,
			"its Corefile has the zone hostname.bind", []string{"hostname.bind."}},
		{"AKS, without its imports", with(`    template ANY ANY reddog.microsoft.com {
      rcode NXDOMAIN
    }`), false, "its Corefile has the plugin template, line 13", []string{"reddog.microsoft.com."}},
		{"DigitalOcean", with("    import custom/*.override"), false, "its Corefile imports text that is not available here, line 13", nil},
		{"hosts in the Corefile", with("    hosts {\n      10.9.9.9 git.corp.local wiki.corp.local\n      fallthrough\n    }"), false,
			"its Corefile has the plugin hosts, line 13", []string{"git.corp.local.", "wiki.corp.local."}},
		{"host.minikube.internal", with("    log\n    hosts {\n       192.168.49.1 host.minikube.internal\n       fallthrough\n    }"), false,
			"its Corefile has the plugin hosts, line 14", []string{"host.minikube.internal."}},
		{"a zone of its own", kubeadm + "corp.local:53 {\n    file /etc/coredns/db.corp.local\n    errors\n}\n", false,
			"its Corefile has the zone corp.local", []string{"corp.local."}},
		{"a stub domain", kubeadm + "corp.example:53 {\n    errors\n    cache 30\n    forward . 10.150.0.1\n}\n", false,
			"its Corefile has the zone corp.example", []string{"corp.example."}},
		{"Consul", "consul.local:53 {\n    errors\n    cache 30\n    forward . 10.150.0.1\n}\n" + kubeadm, false,
			"its Corefile has the zone consul.local", []string{"consul.local."}},
		{"a conditional forward", with("    forward corp.example 10.150.0.1"), false, "its Corefile forwards corp.example separately, line 13", []string{"corp.example."}},
		{"resolvers of its own", forwarding("forward . 8.8.8.8 8.8.4.4"), false, "its Corefile forwards to 8.8.8.8 8.8.4.4, line 13", nil},
		{"over TLS", forwarding("forward . tls://1.1.1.1 tls://1.0.0.1 {\n tls_servername cloudflare-dns.com\n}"), false, "its Corefile forwards to tls://1.1.1.1 tls://1.0.0.1, line 13", nil},
		{"a resolver and the node's", forwarding("forward . /etc/resolv.conf 8.8.8.8"), false, "its Corefile forwards to /etc/resolv.conf 8.8.8.8, line 13", nil},
		{"another file", forwarding("forward . /run/systemd/resolve/resolv.conf"), false, "its Corefile forwards to /run/systemd/resolve/resolv.conf, line 13", nil},
		{"except", forwarding("forward . /etc/resolv.conf {\n      except corp.example\n    }"), false, "its Corefile has except for forward, line 14", []string{"corp.example."}},
		{"next", forwarding("forward . /etc/resolv.conf {\n      next NXDOMAIN\n    }"), false, "its Corefile has next for forward, line 14", nil},
		{"forward to no server", forwarding("forward ."), false, "its Corefile has a forward without servers, line 13", nil},
		{"no forward", forwarding(""), false, "its Corefile forwards names of .:53 to no server", nil},
		{"twice", forwarding("forward . /etc/resolv.conf\nforward . /etc/resolv.conf"), false, "its Corefile forwards all names twice, line 14", nil},
		{"proxy, before CoreDNS 1.5", forwarding("proxy . /etc/resolv.conf"), false, "its Corefile has the plugin proxy, line 13", nil},
		{"rewrite", with("    rewrite name exact shop.example.com shop.default.svc.cluster.local"), false,
			"its Corefile has the plugin rewrite, line 13", []string{"shop.example.com.", "shop.default.svc.cluster.local."}},
		{"a blocklist", with("    template ANY ANY ads.example {\n      rcode NXDOMAIN\n    }"), false, "its Corefile has the plugin template, line 13", []string{"ads.example."}},
		{"acl", with("    acl {\n      block type ANY\n    }"), false, "its Corefile has the plugin acl, line 13", nil},
		{"k8s_external", with("    k8s_external example.org"), false, "its Corefile has the plugin k8s_external, line 13", []string{"example.org."}},
		{"autopath", with("    autopath @kubernetes"), false, "its Corefile has the plugin autopath, line 13", nil},
		{"dns64", with("    dns64"), false, "its Corefile has the plugin dns64, line 13", nil},
		{"a plugin that nobody knows", with("    gslb example.org"), false, "its Corefile has the plugin gslb, line 13", nil},
		{"another domain of Kubernetes", strings.Replace(kubeadm, "kubernetes cluster.local", "kubernetes cluster.local corp.local", 1), false,
			"its Corefile has the zone corp.local (kubernetes), line 7", []string{"corp.local."}},
		{"kubernetes for everything", strings.Replace(kubeadm, "kubernetes cluster.local in-addr.arpa ip6.arpa", "kubernetes", 1), false,
			"its Corefile has kubernetes for all names, line 7", nil},
		{"a zone within the cluster's", kubeadm + "who.cluster.local:53 {\n    template ANY ANY\n}\n", true, sent, nil},
		{"a reverse zone elsewhere", with("    forward 10.in-addr.arpa 10.150.0.1"), true, "forward . /etc/resolv.conf, line 14", nil},
		{"a zone that only looks like the cluster's", kubeadm + "notcluster.local {\n    whoami\n}\n", false, "its Corefile has the zone notcluster.local", []string{"notcluster.local."}},
		{"two blocks for all names", kubeadm + ".:5353 {\n    forward . /etc/resolv.conf\n}\n", false, "its Corefile has a second server block for all names, .:5353", nil},
		{"over TLS to kube-dns", kubeadm + "tls://.:853 {\n    forward . /etc/resolv.conf\n}\n", false, "its Corefile has the server block tls://.:853", nil},
		{"a snippet", "(common) {\n    errors\n}\n" + with("    import common"), false, "its Corefile imports text that is not available here, line 16", nil},
		{"a variable", forwarding("forward . {$UPSTREAM}"), false, "its Corefile has the variable {$UPSTREAM}, line 13", nil},
		{"commented out", with("    # hosts /etc/hosts"), true, "forward . /etc/resolv.conf, line 14", nil},
		{"without braces", "example.org\nwhoami\n", false, "its Corefile has the zone example.org", []string{"example.org."}},
		{"a brace too few", strings.TrimSuffix(kubeadm, "}\n") + "cache {", false, "its Corefile cannot be read (Corefile:23 - Error during parsing: Unexpected EOF)", nil},
		{"empty", "", false, "its Corefile has no server block for all names", nil},
		{"no Corefile", "{\"stubDomains\": {}}", false, "its Corefile has the server block {\"stubDomains\":", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Equal(t, "verdict", Verdict{tc.node, tc.why, tc.names}, Read(tc.text, "cluster.local"))
		})
	}
}

// TestReadCluster reads the Corefile of `make cluster`, which has another zone, but within the cluster's.
func TestReadCluster(t *testing.T) {
	_, text, _ := strings.Cut(testutil.ReadFile(t, "../../../../integration/cluster/node/files/kube-dns.yaml"), "Corefile: |\n")
	text, _, ok := strings.Cut(text, "\n---\n")
	if v := Read(text, "cluster.local"); !ok || !v.Node {
		t.Errorf("%+v of\n%s", v, text)
	}
}

// TestReadOtherDomain: kube-dns serves another domain than the agent is configured with, so its names must not go to the node's resolvers.
func TestReadOtherDomain(t *testing.T) {
	if v := Read(kubeadm, "k8s.example"); v.Node || v.Why != "its Corefile has the zone cluster.local (kubernetes), line 7" {
		t.Errorf("%+v", v)
	}
}

// TestReadOpensNothing: a Corefile imports a file that exists; it must not be read.
func TestReadOpensNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zone")
	testutil.Must(t, os.WriteFile(file, []byte("forward . /etc/resolv.conf\n"), 0o600))
	if v := Read(forwarding("import "+file), "cluster.local"); v.Node {
		t.Errorf("%+v", v)
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{kubeadm, with("hosts {\n10.0.0.1 a.b\n}"), forwarding("forward . 8.8.8.8"), kubeadm + "a.b {\nfile x\n}", "import x", "a, b {\n}", "\"", ".:53 {", "{$A}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v := Read(text, "cluster.local")
		if v.Why == "" || strings.ContainsAny(v.Why, "\n\r") || len(v.Names) > maxNames {
			t.Errorf("%+v", v)
		}
		for _, n := range v.Names {
			if !strict.IsDomain(strings.TrimSuffix(n, ".")) {
				t.Errorf("%q is no name", n)
			}
		}
		if !v.Node {
			return
		}
		if !strings.Contains(text, "forward") || strings.Contains(text, "import ") && !strings.Contains(text, "#") && !strings.Contains(text, `"`) {
			t.Errorf("%q: %+v", text, v)
		}
		// With a zone outside the cluster, queries go to kube-dns, whatever else the Corefile has.
		if more := Read("corp.example {\nwhoami\n}\n"+text, "cluster.local"); more.Node {
			t.Errorf("%q: with a zone of its own %+v", text, more)
		}
	})
}
