package zonefile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

const good = `# a cluster's part of a shared zone
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {name: operator.shared.example, secret: c2VjcmV0}
---
apiVersion: neardns.io/v1alpha1
kind: DNSZone
metadata: {name: shared}
spec:
  zone: shared.example
  primary: 192.0.2.53
  tsig: {secretName: key}
  publishers:
  - {namespaces: ["*"], hosts: ["*.shared.example"], targets: [0.0.0.0/0]}
---
apiVersion: neardns.io/v1alpha1
kind: DNSRecord
metadata: {name: app, namespace: default}
spec: {host: app.shared.example, addresses: [192.0.2.1]}
`

func TestParse(t *testing.T) {
	f, err := Parse([]byte(good))
	testutil.Must(t, err)
	p, ok := f.Plan.Zones["shared"].Hosts["app.shared.example."]
	if !ok || p.TTL != defaultTTL || p.Strategy != "Simple" || len(p.Addresses) != 1 {
		t.Errorf("publishes %+v", p)
	}
	if k := f.Keys["shared"]; k.Name != "operator.shared.example." || k.Algorithm != "hmac-sha256" || k.Secret != "c2VjcmV0" {
		t.Errorf("key %+v", k)
	}
	if z := f.Zones[0].Spec; z.HeartbeatSeconds != defaultHeartbeat || z.MessagesPerMinute != defaultRate || z.Removal != "Report" {
		t.Errorf("defaults %+v", z)
	}
}

// A list is what kubectl prints of several objects.
func TestParseList(t *testing.T) {
	var list strings.Builder
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for _, object := range strings.Split(good, "---\n") {
		for i, line := range strings.Split(strings.TrimSpace(object), "\n") {
			indent := "  "
			if i == 0 {
				indent = "- "
			}
			if !strings.HasPrefix(line, "#") {
				list.WriteString(indent + line + "\n")
			} else {
				list.WriteString("-\n")
			}
		}
	}
	f, err := Parse([]byte(list.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, list.String())
	}
	if len(f.Zones) != 1 || len(f.Records) != 1 || !f.Plan.Zones["shared"].Good() {
		t.Errorf("read %+v", f)
	}
}

func TestParseFaults(t *testing.T) {
	zone := good[:strings.LastIndex(good, "---")]
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "there is no DNSZone in it"},
		"comments":          {"# nothing\n---\n# more\n", "there is no DNSZone in it"},
		"no YAML":           {"a: [\n", "line 1: "},
		"no object":         {"just text\n", "line 1: "},
		"foreign kind":      {zone + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "line 17: ConfigMap has no place here"},
		"unknown field":     {strings.Replace(good, "tsig:", "tsgi:", 1), `line 7: strict decoding error: unknown field "spec.tsgi"`},
		"field of a record": {strings.Replace(good, "addresses:", "adresses:", 1), `line 17: strict decoding error: unknown field "spec.adresses"`},
		"wrong type":        {strings.Replace(good, "[192.0.2.1]", "5", 1), "line 17: "},
		"no Secret":         {strings.Replace(good, "secretName: key", "secretName: lock", 1), `DNSZone shared: spec.tsig: there is no Secret "lock" in the file`},
		"no secret in it":   {strings.Replace(good, ", secret: c2VjcmV0", "", 1), "DNSZone shared: Secret key: "},
		"no primary":        {strings.Replace(good, "  primary: 192.0.2.53\n", "", 1), "line 7: DNSZone shared: spec.zone and spec.primary are needed"},
		"zone twice":        {good + "---\n" + strings.Split(good, "---\n")[1], "DNSZone shared is there twice"},
		"record twice":      {good + "---\n" + strings.Split(good, "---\n")[2], "DNSRecord default/app is there twice"},
		"Secret twice":      {good + "---\n" + strings.Split(good, "---\n")[0], "Secret key is there twice"},
		"policy twice":      {good + strings.Repeat(policy, 2), "DNSPolicy default/web is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			testutil.WantError(t, err, c.want)
			if err != nil && strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}

// A record that cannot be published is no fault of the file: its verdict gives the reason.
func TestVerdicts(t *testing.T) {
	for change, want := range map[[2]string]string{
		{"app.shared.example", "app.other.example"}:                                 "NoZone",
		{"[192.0.2.1]", "[2001:db8::1]"}:                                            "NotAllowed",
		{"addresses: [192.0.2.1]", "addressesFrom: {kind: Service, name: ingress}"}: "NoAddresses",
		{"addresses: [192.0.2.1]", "addresses: [192.0.2.1], geo: IE"}:               "Invalid",
		{", addresses: [192.0.2.1]", ""}:                                            "Invalid",
	} {
		f, err := Parse([]byte(strings.ReplaceAll(good, change[0], change[1])))
		testutil.Must(t, err)
		for key, r := range f.Plan.Records {
			if r.Reason != want {
				t.Errorf("%v: %s: %s: %s; want %s", change, key, r.Reason, r.Message, want)
			}
		}
	}
}

const policy = `---
apiVersion: neardns.io/v1alpha1
kind: DNSPolicy
metadata: {name: web, namespace: default}
spec: {targetRef: {name: web}}
`

// A file may have Gateways and DNSPolicies, and the DNSRecords that a cluster's controller made of them, which are made again.
func TestParsePolicies(t *testing.T) {
	const gateway = `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: default}
spec: {gatewayClassName: any, listeners: [{name: a, hostname: www.shared.example}, {name: b}]}
status: {addresses: [{value: 192.0.2.7}]}
`
	const made = `---
apiVersion: neardns.io/v1alpha1
kind: DNSRecord
metadata:
  name: web-old
  namespace: default
  ownerReferences: [{apiVersion: neardns.io/v1alpha1, kind: DNSPolicy, name: web, uid: u, controller: true}]
spec: {host: old.shared.example, addressesFrom: {kind: Gateway, name: web}}
`
	f, err := Parse([]byte(good + policy + strings.Replace(made, "old.shared.example", "old.other.example", 1)))
	testutil.Must(t, err)
	var lines []string
	for _, l := range f.notAccepted() {
		lines = append(lines, l.String())
	}
	if slices.Sort(lines); len(lines) != 1 || !strings.HasPrefix(lines[0], "DNSPolicy default/web is not accepted: TargetNotFound: ") {
		t.Errorf("%q", lines)
	}
	f, err = Parse([]byte(good + policy + gateway + made))
	testutil.Must(t, err)
	name := zones.Key{Namespace: "default", Name: "web"}
	hosts := f.Plan.Zones["shared"].Hosts
	if www := hosts["www.shared.example."]; len(hosts) != 2 || fmt.Sprint(www.Addresses) != "[192.0.2.7]" || www.TTL != 60 {
		t.Errorf("%+v", hosts)
	}
	if u := f.Policies[name].Unpublished; len(u) != 1 || u[0].Reason != zones.NoHost {
		t.Errorf("%+v", u)
	}
	f, err = Parse([]byte(good + policy + gateway + strings.Replace(made, "name: web, uid", "name: another, uid", 1)))
	testutil.Must(t, err)
	if old := f.Plan.Zones["shared"].Hosts["old.shared.example."]; fmt.Sprint(old.Addresses) != "[192.0.2.7]" {
		t.Errorf("of a DNSPolicy that the file does not have: %+v", old)
	}
	f, err = Parse([]byte(good + policy))
	testutil.Must(t, err)
	const missing = "the file has no Gateway default/web"
	if p := f.Policies[name]; p.Reason != zones.TargetNotFound || !strings.Contains(p.Message, missing) {
		t.Errorf("%+v", p)
	}
	f, err = Parse([]byte(good + made))
	testutil.Must(t, err)
	name.Name = "web-old"
	if r := f.Plan.Records[name]; r.Reason != zones.NoAddresses || !strings.Contains(r.Message, missing) {
		t.Errorf("%+v", r)
	}
}

func TestChooseZone(t *testing.T) {
	second := strings.NewReplacer("name: shared}", "name: other}", "shared.example", "other.example").Replace(strings.Split(good, "---\n")[1])
	f, err := Parse([]byte(good + "---\n" + second))
	testutil.Must(t, err)
	for name, want := range map[string]string{"shared": "shared", "other.example.": "other", "": "several zones", "nobody": `no zone "nobody"`} {
		z, err := f.zone(name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && z.Name != want {
			t.Errorf("%q: %v, %v; want %s", name, z, err, want)
		}
	}
}

func TestReadNamesTheFile(t *testing.T) {
	path := t.TempDir() + "/zone.yaml"
	testutil.Must(t, os.WriteFile(path, []byte("kind: x\n"), 0o600))
	if _, err := Read(path); err == nil || !strings.HasPrefix(err.Error(), path+": line 1: ") {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{}]\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if file, err := Parse(data); err == nil && len(file.Zones) == 0 {
			panic("a good file without a zone")
		}
	})
}

// A record that the file lacks from one reading to the next leaves the zone, also if the DNSZone gets a new publisher at the same time.
// If the file no longer has the DNSZone, the log names it and the records that stay.
func TestReread(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the publishers end before they query the primary
	var log strings.Builder
	p := &publishing{Publishing: Publishing{Identity: zone.Identity{Cluster: "aaaaaaaa", Instance: "one"}, Log: slog.New(slog.NewTextHandler(&log, nil))},
		ctx: ctx}
	apply := func(text string) {
		t.Helper()
		f, err := Parse([]byte(text))
		testutil.Must(t, err)
		testutil.Must(t, p.apply(f))
	}
	apply(good)
	app := good[strings.LastIndex(good, "---"):]
	slower := strings.Replace(good, "  publishers:", "  heartbeatSeconds: 60\n  publishers:", 1)
	for _, text := range []string{strings.Replace(slower, app, "", 1), strings.Replace(good, app, "", 1)} {
		before := p.zones["shared"]
		apply(text)
		z := p.zones["shared"]
		set, known := z.hosts["app.shared.example."]
		if _, told := z.publisher.Status("app.shared.example."); z == before || !known || set || !told {
			t.Errorf("the host is known: %v, published: %v, the publisher is to leave it: %v", known, set, told)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	apply(strings.NewReplacer("name: shared}", "name: another}", "zone: shared.example", "zone: another.example", "app.shared", "app.another", "*.shared", "*.another").Replace(good))
	p.wait()
	if !strings.Contains(log.String(), "records stay unless another has the old zone") || !strings.Contains(log.String(), "shared.example") {
		t.Errorf("logged: %s", log.String())
	}
}

// A file with a bad DNSZone, read again, changes nothing: no publisher stops, and none forgets which hosts it has to remove.
func TestApplyBadZone(t *testing.T) {
	objects := strings.Split(strings.Replace(good, "192.0.2.53", "127.0.0.1:1", 1), "---\n")
	parse := func(documents ...string) *File {
		t.Helper()
		f, err := Parse([]byte(strings.Join(documents, "---\n")))
		testutil.Must(t, err)
		return f
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &publishing{Publishing: Publishing{Identity: zone.Identity{Cluster: "aaaaaaaa", Instance: "i"}, Log: slog.New(slog.DiscardHandler)},
		ctx: ctx, changed: make(chan struct{}, 1)}
	defer p.wait()
	defer cancel()
	testutil.Must(t, p.apply(parse(objects...)))
	before := p.zones["shared"]
	end, stopped := before.cancel, false
	before.cancel = func() { stopped = true; end() }
	moved := strings.Replace(objects[1], "127.0.0.1:1", "127.0.0.1:2", 1)
	named := func(name, zone string) string {
		return strings.NewReplacer("name: shared}", "name: "+name+"}", "zone: shared.example", "zone: "+zone).Replace(moved)
	}
	for want, other := range map[string][]string{
		"a2: Duplicate":     {named("a1", "other.example"), named("a2", "other.example")},
		"heartbeat every 2": {strings.Replace(named("a1", "other.example"), "  publishers:", "  heartbeatSeconds: 7200\n  publishers:", 1)},
	} {
		err := p.apply(parse(slices.Concat(objects[:1], []string{moved}, other)...))
		if err == nil || !strings.Contains(err.Error(), want) || stopped || p.zones["shared"] != before ||
			!before.hosts["app.shared.example."] {
			t.Errorf("%v, want %q; stopped: %t; hosts %v", err, want, stopped, before.hosts)
		}
	}
	if err := p.apply(parse(objects[0], moved)); err != nil || !stopped || p.zones["shared"].hosts["app.shared.example."] {
		t.Errorf("%v; stopped: %t", err, stopped)
	}
}
