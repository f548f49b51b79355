package controlplane

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/pkg/testutil"
)

// goodZone, goodRecord and goodPolicy are taken; a bad one differs in one field.
const (
	goodZone   = `{zone: shared.example, primary: 192.0.2.53, tsig: {secretName: key}, publishers: [{namespaces: [shop], hosts: ["*.shared.example"], targets: [192.0.2.0/24]}]}`
	goodRecord = `{host: www.shared.example, strategy: LoadBalanced, addresses: [192.0.2.1, "2001:db8::1"], weight: 0, geo: GEO-EU, defaultGeo: true, healthCheck: {protocol: HTTPS, port: 443, path: /ready, host: shop.example}}`
	goodPolicy = `{targetRef: {name: web, sectionName: https}, strategy: LoadBalanced, weight: 0, geo: GEO-EU, defaultGeo: true, ttl: 30}`
)

// with sets a field of a flow mapping's first level, or takes it away where value is empty.
func with(good, field, value string) string {
	var out []string
	depth, begin := 0, 1
	for i, r := range good {
		switch r {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if r == ',' && depth == 1 || depth == 0 {
			if part := strings.TrimSpace(good[begin:i]); !strings.HasPrefix(part, field+":") {
				out = append(out, part)
			}
			begin = i + 1
		}
	}
	if value != "" {
		out = append(out, field+": "+value)
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// TestZonesRefused has the API server refuse what can mean nothing in a shared zone, by one reason that names the field.
func TestZonesRefused(t *testing.T) {
	p := Start(t, false, "serviceaccount-controller")
	p.AwaitKubectl("apply", "-f", "../../fleet/install/zones/crd.yaml")
	create := func(kind, spec string) (string, error) {
		p.write("object.yaml", "apiVersion: neardns.io/v1alpha1\nkind: "+kind+"\nmetadata: {name: test}\nspec: "+spec+"\n")
		return p.Kubectl("create", "--validate=strict", "-f", p.path("object.yaml"))
	}
	long := strings.Repeat("a", 64)
	type row struct{ kind, field, value, want string }
	rows := []row{
		{"DNSZone", "zone", "", "spec.zone: Required"},
		{"DNSZone", "zone", `""`, "spec.zone"},
		{"DNSZone", "zone", ".", "a name has labels"},
		{"DNSZone", "zone", "shared.example.", "none at the end"},
		{"DNSZone", "zone", "Shared.example", "in lower case"},
		{"DNSZone", "zone", "shared..example", "a name has labels"},
		{"DNSZone", "zone", "-shared.example", "a name has labels"},
		{"DNSZone", "zone", long + ".example", "at most 63"},
		{"DNSZone", "zone", `"*.example"`, "a name has labels"},
		{"DNSZone", "zone", `münchen.example`, "a name has labels"},
		{"DNSZone", "zone", "_neardns.example", "a name has labels"},
		{"DNSZone", "zone", "[a]", "spec.zone"},
		{"DNSZone", "primary", "", "spec.primary: Required"},
		{"DNSZone", "primary", "http://ns.example", "primary is ADDRESS"},
		{"DNSZone", "primary", "192.0.2.53:0", "primary is ADDRESS"},
		{"DNSZone", "primary", "192.0.2.53:65536", "primary is ADDRESS"},
		{"DNSZone", "primary", "192.0.2.53:dns", "primary is ADDRESS"},
		{"DNSZone", "primary", `"[2001:db8::1"`, "primary is ADDRESS"},
		{"DNSZone", "primary", `"[2001:db8:::1]:53"`, "primary is ADDRESS"},
		{"DNSZone", "primary", "ns one", "primary is ADDRESS"},
		{"DNSZone", "tsig", "", "spec.tsig: Required"},
		{"DNSZone", "tsig", "{}", "spec.tsig.secretName: Required"},
		{"DNSZone", "tsig", "{secretName: Key}", "the name of a Secret"},
		{"DNSZone", "tsig", "{secretName: key, namespace: shop}", `unknown field "spec.tsig.namespace"`},
		{"DNSZone", "publishers", `[{hosts: [a.example], targets: [192.0.2.0/24]}]`, "spec.publishers[0].namespaces: Required"},
		{"DNSZone", "publishers", `[{namespaces: [], hosts: [a.example]}]`, "spec.publishers[0].namespaces"},
		{"DNSZone", "publishers", `[{namespaces: [Shop], hosts: [a.example]}]`, "a namespace's name has"},
		{"DNSZone", "publishers", `[{namespaces: [shop, shop], hosts: [a.example]}]`, "Duplicate value"},
		{"DNSZone", "publishers", `[{namespaces: [shop]}]`, "spec.publishers[0].hosts: Required"},
		{"DNSZone", "publishers", `[{namespaces: [shop], hosts: ["a.*.example"]}]`, "a host has labels"},
		{"DNSZone", "publishers", `[{namespaces: [shop], hosts: ["*"]}]`, "a host has labels"},
		{"DNSZone", "publishers", `[{namespaces: [shop], hosts: [a.example], targets: [192.0.2.1]}]`, "a range is ADDRESS/BITS"},
		{"DNSZone", "publishers", `[{namespaces: [shop], hosts: [a.example], targets: [192.0.2.1/24]}]`, "a range is ADDRESS/BITS"},
		{"DNSZone", "publishers", `[{namespaces: [shop], hosts: [a.example], targets: [192.0.2.0/33]}]`, "a range is ADDRESS/BITS"},
		{"DNSZone", "heartbeatSeconds", "1", "spec.heartbeatSeconds"},
		{"DNSZone", "heartbeatSeconds", "5m", "spec.heartbeatSeconds"},
		{"DNSZone", "removal", "Delete", `supported values: "Report", "Remove"`},
		{"DNSZone", "messagesPerMinute", "0", "spec.messagesPerMinute"},
		{"DNSRecord", "host", "", "spec.host: Required"},
		{"DNSRecord", "host", "www.shared.example.", "none at the end"},
		{"DNSRecord", "host", "WWW.shared.example", "in lower case"},
		{"DNSRecord", "host", `"*"`, "a host has labels"},
		{"DNSRecord", "host", `"w*.shared.example"`, "a host has labels"},
		{"DNSRecord", "host", "a.klb.www.shared.example", "the label klb is for"},
		{"DNSRecord", "host", "c._neardns.shared.example", "a host has labels"},
		{"DNSRecord", "host", strings.Repeat("aaaaaaa.", 32) + "example", "spec.host"},
		{"DNSRecord", "strategy", "Weighted", `supported values: "Simple", "LoadBalanced"`},
		{"DNSRecord", "addresses", "", "one of addresses, hostname and addressesFrom"},
		{"DNSRecord", "addresses", "[]", "spec.addresses"},
		{"DNSRecord", "addresses", "[192.0.2.256]", "an address is IPv4"},
		{"DNSRecord", "addresses", "[192.0.2.01]", "an address is IPv4"},
		{"DNSRecord", "addresses", `["2001:DB8::1"]`, "in its usual form"},
		{"DNSRecord", "addresses", `["::ffff:192.0.2.1"]`, "an address is IPv4"},
		{"DNSRecord", "addresses", `["fe80::1%eth0"]`, "an address is IPv4"},
		{"DNSRecord", "addresses", "[www.example]", "an address is IPv4"},
		{"DNSRecord", "addresses", "[127.0.0.1]", "clients elsewhere can reach"},
		{"DNSRecord", "addresses", "[169.254.20.10]", "clients elsewhere can reach"},
		{"DNSRecord", "addresses", `["::1"]`, "clients elsewhere can reach"},
		{"DNSRecord", "addresses", `["fe80::1"]`, "clients elsewhere can reach"},
		{"DNSRecord", "addresses", "[224.0.0.1]", "clients elsewhere can reach"},
		{"DNSRecord", "addresses", "[0.0.0.0]", "clients elsewhere can reach"},
		{"DNSRecord", "addresses", "[192.0.2.1, 192.0.2.1]", "Duplicate value"},
		{"DNSRecord", "hostname", "lb.example", "one of addresses, hostname and addressesFrom"},
		{"DNSRecord", "addressesFrom", "{kind: Service, name: web}", "one of addresses, hostname and addressesFrom"},
		{"DNSRecord", "ttl", "0", "spec.ttl"},
		{"DNSRecord", "ttl", "86401", "spec.ttl"},
		{"DNSRecord", "ttl", "1m", "spec.ttl"},
		{"DNSRecord", "weight", "-1", "spec.weight"},
		{"DNSRecord", "weight", "65536", "spec.weight"},
		{"DNSRecord", "weight", "0.5", "spec.weight"},
		{"DNSRecord", "geo", "EUROPE", "geo is a continent"},
		{"DNSRecord", "geo", "GEO-XX", "geo is a continent"},
		{"DNSRecord", "geo", "ie", "geo is a continent"},
		{"DNSRecord", "geo", "", "defaultGeo needs a geo"},
		{"DNSRecord", "healthCheck", "{port: 80}", "spec.healthCheck.protocol: Required"},
		{"DNSRecord", "healthCheck", "{protocol: HTTP}", "spec.healthCheck.port: Required"},
		{"DNSRecord", "healthCheck", "{protocol: http, port: 80}", `supported values: "HTTP", "HTTPS", "TCP"`},
		{"DNSRecord", "healthCheck", "{protocol: HTTP, port: 0}", "spec.healthCheck.port"},
		{"DNSRecord", "healthCheck", "{protocol: HTTP, port: 80, path: /" + strings.Repeat("a", 80) + "}", "spec.healthCheck.path"},
		{"DNSRecord", "healthCheck", "{protocol: HTTP, port: 65536}", "spec.healthCheck.port"},
		{"DNSRecord", "healthCheck", "{protocol: HTTP, port: 80, path: ready}", "path begins with /"},
		{"DNSRecord", "healthCheck", `{protocol: HTTP, port: 80, path: "/a b"}`, "path begins with /"},
		{"DNSRecord", "healthCheck", "{protocol: TCP, port: 80, path: /}", "path needs protocol HTTP or HTTPS"},
		{"DNSRecord", "healthCheck", "{protocol: TCP, port: 80, host: a.example}", "host needs protocol HTTP or HTTPS"},
		{"DNSRecord", "healthCheck", "{protocol: HTTPS, port: 443, insecure: true}", `unknown field "spec.healthCheck.insecure"`},
		{"DNSRecord", "deletionPolicy", "Retain", `supported values: "Delete", "Orphan"`},
		{"DNSRecord", "providerRef", "{name: a}", `unknown field "spec.providerRef"`},
		{"DNSPolicy", "targetRef", "", "spec.targetRef: Required"},
		{"DNSPolicy", "targetRef", "{}", "spec.targetRef.name: Required"},
		{"DNSPolicy", "targetRef", "{name: Web}", "name is an object's name"},
		{"DNSPolicy", "targetRef", "{name: web, kind: Service}", `supported values: "Gateway"`},
		{"DNSPolicy", "targetRef", "{name: web, group: example.com}", `supported values: "gateway.networking.k8s.io"`},
		{"DNSPolicy", "targetRef", "{name: web, namespace: other}", `unknown field "spec.targetRef.namespace"`},
		{"DNSPolicy", "targetRef", "{name: web, sectionName: a b}", "name is an object's name"},
		{"DNSPolicy", "strategy", "Weighted", `supported values: "Simple", "LoadBalanced"`},
		{"DNSPolicy", "geo", "", "defaultGeo needs a geo"},
		{"DNSPolicy", "weight", "65536", "spec.weight"},
		{"DNSPolicy", "ttl", "0", "spec.ttl"},
		{"DNSPolicy", "healthCheck", "{protocol: TCP, port: 80, path: /}", "path needs protocol HTTP or HTTPS"},
		{"DNSPolicy", "host", "www.shared.example", `unknown field "spec.host"`},
	}
	for _, r := range rows {
		good := map[string]string{"DNSZone": goodZone, "DNSRecord": goodRecord, "DNSPolicy": goodPolicy}[r.kind]
		out, err := create(r.kind, with(good, r.field, r.value))
		wantOneReason(t, fmt.Sprintf("%s with %s: %s", r.kind, r.field, r.value), out, err, r.want)
	}
	for spec, want := range map[string]string{
		`{host: a.shared.example, addresses: [192.0.2.1], weight: 1}`:                             "weight needs strategy LoadBalanced",
		`{host: a.shared.example, addresses: [192.0.2.1], geo: IE}`:                               "geo needs strategy LoadBalanced",
		`{host: a.shared.example, hostname: lb.example}`:                                          "hostname needs strategy LoadBalanced",
		`{host: a.shared.example, strategy: LoadBalanced, hostname: 192.0.2.1.}`:                  "a name has labels",
		`{host: a.shared.example, addressesFrom: {kind: Ingress, name: web}}`:                     `supported values: "Service", "Gateway"`,
		`{host: a.shared.example, addressesFrom: {kind: Service}}`:                                "spec.addressesFrom.name: Required",
		`{host: a.shared.example, addressesFrom: {kind: Service, name: Web}}`:                     "name is an object's name",
		`{host: a.shared.example, addressesFrom: {kind: Service, name: web, namespace: another}}`: `unknown field "spec.addressesFrom.namespace"`,
	} {
		out, err := create("DNSRecord", spec)
		wantOneReason(t, spec, out, err, want)
	}
	var zones v1alpha1.DNSZoneList
	var records v1alpha1.DNSRecordList
	if err := p.Client.List(t.Context(), &zones); err != nil || len(zones.Items) > 0 {
		t.Errorf("%v: %d DNSZones were made", err, len(zones.Items))
	}
	if err := p.Client.List(t.Context(), &records); err != nil || len(records.Items) > 0 {
		t.Errorf("%v: %d DNSRecords were made", err, len(records.Items))
	}

	// What is good is taken, and cannot be made another thing.
	for kind, good := range map[string]string{"DNSZone": goodZone, "DNSRecord": goodRecord, "DNSPolicy": goodPolicy} {
		out, err := create(kind, good)
		testutil.Check(t, err, kind, out)
	}
	for _, r := range []row{
		{"dnszone", "zone", "other.example", "a DNSZone keeps its zone"},
		{"dnsrecord", "host", "other.shared.example", "a DNSRecord keeps its host"},
		{"dnsrecord", "strategy", "Simple", "strategy cannot be changed"},
		{"dnsrecord", "strategy", "null", "strategy cannot be changed"}, // the default is the other strategy
		{"dnspolicy", "strategy", "Simple", "strategy cannot be changed"},
	} {
		clear := ""
		if r.field == "strategy" {
			clear = `, "geo": null, "weight": null, "defaultGeo": null`
		}
		value := `"` + r.value + `"`
		if r.value == "null" {
			value = r.value
		}
		out, err := p.Kubectl("patch", r.kind, "test", "--type=merge", "-p", `{"spec": {"`+r.field+`": `+value+clear+`}}`)
		wantOneReason(t, fmt.Sprintf("%s changed to %s: %s", r.kind, r.field, r.value), out, err, r.want)
	}
	for _, primary := range []string{"192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:5353", "[2001:db8::53]", "ns1.example", "ns1.example:53"} {
		p.MustKubectl("patch", "dnszone", "test", "--type=merge", "-p", `{"spec": {"primary": "`+primary+`"}}`)
	}
	p.MustKubectl("create", "namespace", "shop")
	for _, sample := range []string{"dnszone.yaml", "dnsrecord.yaml", "dnspolicy.yaml"} {
		p.MustKubectl("create", "--validate=strict", "-f", "../../fleet/conf/"+sample)
	}
	p.write("object.yaml", "apiVersion: neardns.io/v1alpha1\nkind: DNSPolicy\nmetadata: {name: "+long+"}\nspec: {targetRef: {name: web}}\n")
	if out, err := p.Kubectl("create", "-f", p.path("object.yaml")); err == nil || !strings.Contains(out, "at most 63 characters") {
		t.Errorf("a name of 64 characters: %v: %s", err, out)
	}
	// A record with little in it.
	p.write("object.yaml", "apiVersion: neardns.io/v1alpha1\nkind: DNSRecord\nmetadata: {name: little}\nspec: {host: '*.shared.example', addressesFrom: {kind: Gateway, name: web}}\n")
	p.MustKubectl("create", "--validate=strict", "-f", p.path("object.yaml"))
}

// wantOneReason checks that kubectl failed by the one reason wanted.
func wantOneReason(t *testing.T, what, out string, err error, want string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s was taken", what)
	case !strings.Contains(out, want):
		t.Errorf("%s is refused for another reason than %q: %s", what, want, out)
	case strings.Count(out, "* spec") > 1: // the API server's message about rules that it could not check names no field
		t.Errorf("%s has more than one reason: %s", what, out)
	}
}
