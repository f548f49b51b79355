package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/testutil"
)

func settings(nameservers, searches, options string) resolvconf.Settings {
	return resolvconf.Settings{Nameservers: strings.Fields(nameservers), Searches: strings.Fields(searches), Options: strings.Fields(options)}
}

// decode reads rules from JSON. The error has all faults, one on each line, which begins with the field's path. field is the path of the
// rules, for example "dns".
func decode(field string, data []byte) (*Rules, error) {
	v, err := strict.JSON("", field, data)
	if err != nil {
		v = strict.Value{Field: field}
	}
	var r strict.Reader
	rules := Read(&r, v)
	if err := r.Err(0); err != nil {
		return nil, err
	}
	return &rules, nil
}

func mustDecode(t *testing.T, text string) *Rules {
	t.Helper()
	r, err := decode("dns", []byte(text))
	testutil.Must(t, err)
	return r
}

func TestDecodeFaults(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                                     `dns: is a list: write an object, such as {"key": "value"}`,
		`null`:                                   `dns: is null: write an object, such as {"key": "value"}`,
		`{"domain": "x"}`:                        `dns.domain: unknown key: take it out, or use one of policy, nameservers, searches, options, annotations, namespaces`,
		`{"annotations": "obey"}`:                `dns.annotations: "obey" is not known: write one of honour, ignore`,
		`{"namespace": {}, "option": []}`:        "dns.namespace: unknown key: write \"namespaces\"\ndns.option: unknown key: write \"options\"",
		`{"namespaces": {"shop": {"limit": 1}}}`: "dns.namespaces.shop.limit: unknown key: take it out, or use one of policy, nameservers, searches, options, annotations",
		`{"namespaces": []}`:                     `dns.namespaces: is a list: write an object, such as {"key": "value"}`,
		`{"namespaces": {"Shop": {}, "a.b": {}}}`:          "dns.namespaces: \"Shop\" is not the name of a namespace\ndns.namespaces: \"a.b\" is not the name of a namespace",
		`{"namespaces": {"shop": {"namespaces": {}}}}`:     "dns.namespaces.shop.namespaces: is for all pods only: take it out here",
		`{"namespaces": {"shop": {}, "shop": {}}}`:         "dns.namespaces.shop: appears twice: write it once",
		`{"namespaces": {"shop": {"nameservers": ["x"]}}}`: `dns.namespaces.shop.nameservers[0]: "x" is not an IP address: write it without port, prefix, zone or name, like 10.96.0.10`,
	} {
		if _, err := decode("dns", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
}

// Rules that are written and read again are the same.
func TestRulesAreKept(t *testing.T) {
	for _, text := range []string{
		`{}`,
		`{"options":["ndots:2","edns0"]}`,
		`{"policy":"None","nameservers":["10.96.0.10"],"searches":["a.b"],"options":["ndots:2"],"annotations":"ignore",` +
			`"namespaces":{"a":{},"b":{"policy":"Default","annotations":"honour"}}}`,
	} {
		r := mustDecode(t, text)
		out, err := json.Marshal(r)
		testutil.Must(t, err)
		testutil.Equal(t, "rules that were written", text, string(out))
		testutil.Equal(t, "rules that were read again", r, mustDecode(t, string(out)))
		testutil.Equal(t, text+" is zero", text == `{}`, r.IsZero())
	}
}

var (
	node = resolvconf.Node{Host: resolvconf.Settings{Nameservers: []string{"192.0.2.1"}, Searches: []string{"corp.example"}},
		ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local", Locals: map[string]string{"10.96.0.10": "169.254.20.10"}}
	own = settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:5")
)

func TestPrecedence(t *testing.T) {
	const rules = `{"options": ["ndots:4", "timeout:4"], "searches": ["all.example"],
		"namespaces": {"shop": {"options": ["ndots:3"], "searches": ["shop.example"]},
			"alone": {"policy": "Default", "options": ["rotate"]}, "closed": {"annotations": "ignore"}}}`
	const params = "search: [pod.example]\noptions:\n- name: ndots\n  value: 2\n"
	for name, tc := range map[string]struct {
		rules, namespace, params string
		want                     resolvconf.Settings
		ignored                  string
	}{
		"nothing":                 {`{}`, "shop", "", own, ""},
		"all pods":                {rules, "other", "", settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example", "ndots:4 timeout:4"), ""},
		"the namespace above":     {rules, "shop", "", settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example shop.example", "ndots:3 timeout:4"), ""},
		"the pod above both":      {rules, "shop", params, settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example shop.example pod.example", "ndots:2 timeout:4"), ""},
		"a policy starts anew":    {rules, "alone", "", settings("192.0.2.1", "corp.example", "rotate"), ""},
		"the pod above a policy":  {rules, "alone", params, settings("192.0.2.1", "corp.example pod.example", "rotate ndots:2"), ""},
		"the pod's own policy":    {rules, "shop", `{"policy": "Custom", "nameservers": ["1.2.3.4"]}`, settings("1.2.3.4", "", ""), ""},
		"annotations are ignored": {rules, "closed", params, settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example", "ndots:4 timeout:4"), "annotation neardns.io/dns-params: annotations is ignore in the node's settings for this pod"},
		"ignored for all, heeded for one": {`{"annotations": "ignore", "namespaces": {"shop": {"annotations": "honour"}}}`, "shop", `{"options": ["ndots:1"]}`,
			settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:1"), ""},
		"a pod without a namespace": {rules, "", "", settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example", "ndots:4 timeout:4"), ""},
		"the pod's is unreadable": {rules, "shop", "options: [ndots: 1]", settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example shop.example", "ndots:3 timeout:4"),
			"annotation neardns.io/dns-params: options[0].ndots: unknown key: take it out, or use one of name, value; options[0].name: missing: name and value of an option stand in one object (in YAML under one dash), or in one word in quotes, like ndots:2"},
		"the proposal's slip": {`{}`, "shop", "- options:\n  - name: ndots\n  - value: 1\n", own,
			"annotation neardns.io/dns-params: is a list: write an object, such as {\"key\": \"value\"}"},
		"the pod's would leave no nameserver": {rules, "shop", `{"policy": "None"}`, settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local all.example shop.example", "ndots:3 timeout:4"),
			"annotation neardns.io/dns-params: overlay dropped: nameservers: it leaves the pod without any: name one, or another policy"},
		"nameservers that are nobody's": {`{"nameservers": ["0.0.0.0", "192.0.2.9"]}`, "shop", `{"nameservers": ["224.0.0.251", "255.255.255.255", "fe80::1", "169.254.20.10"]}`,
			settings("10.96.0.10 192.0.2.9 169.254.20.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:5"),
			"nameserver 0.0.0.0 of dns: it is the unspecified address: write 127.0.0.1 or ::1 for a resolver in the pod\n" +
				"nameserver 224.0.0.251 of annotation neardns.io/dns-params: it is a multicast address, whose answers come from another address\n" +
				"nameserver 255.255.255.255 of annotation neardns.io/dns-params: it is the broadcast address, whose answers come from another address\n" +
				"nameserver fe80::1 of annotation neardns.io/dns-params: it is link-local, which needs a zone: write another address of that server"},
		"none but such": {`{}`, "shop", `{"policy": "None", "nameservers": ["::"]}`, own,
			"nameserver :: of annotation neardns.io/dns-params: it is the unspecified address: write 127.0.0.1 or ::1 for a resolver in the pod\n" +
				"annotation neardns.io/dns-params: overlay dropped: nameservers: it leaves the pod without any: name one, or another policy"},
		"the node's own address for all": {`{"nameservers": ["local"]}`, "shop", "options: [\"ndots:1\"]\n",
			settings("169.254.20.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:1"), ""},
		"for a namespace":   {`{"namespaces": {"shop": {"nameservers": "local"}}}`, "shop", "", settings("169.254.20.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:5"), ""},
		"for a pod":         {`{}`, "shop", "nameservers: local\n", settings("169.254.20.10", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:5"), ""},
		"for all but a pod": {`{"nameservers": ["local"]}`, "shop", "policy: ClusterFirst\n", settings("10.96.0.10", "shop.svc.cluster.local svc.cluster.local cluster.local corp.example", "ndots:5"), ""},
		"too long and cut": {`{}`, "shop", `{"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3"]}`,
			settings("10.96.0.10 1.1.1.1 2.2.2.2", "shop.svc.cluster.local svc.cluster.local cluster.local", "ndots:5"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{"foreign.example/x": "y"}
			if tc.params != "" {
				annotations[AnnotationParams] = tc.params
			}
			w := mustDecode(t, tc.rules).For("dns", tc.namespace, annotations)
			all, r, ignored := w.Apply(node, nil, tc.namespace, own)
			testutil.Equal(t, "settings", tc.want, r.Settings, cmpopts.EquateEmpty())
			var lines []string
			for _, i := range ignored {
				lines = append(lines, i.What+": "+i.Why)
			}
			testutil.Equal(t, "ignored", tc.ignored, strings.Join(lines, "\n"))
			if all == nil {
				testutil.Equal(t, "settings without an overlay", own, r.Settings)
				return
			}
			// The overlay that Apply returned gives the same settings without the node.
			again, err := all.Apply(own)
			testutil.Must(t, err)
			testutil.Equal(t, "laid again", r.Settings, again.Settings)
			// Applied twice, it gives the same settings.
			twice, err := all.Apply(r.Settings)
			testutil.Must(t, err)
			testutil.Equal(t, "laid over itself", r.Settings, twice.Settings)
		})
	}
}

func TestAnnotations(t *testing.T) {
	yes, no := true, false
	for value, want := range map[string]struct {
		steer   podfile.Annotations
		ignored int
	}{
		"true":  {podfile.Annotations{OptIn: true, KernelHits: &yes}, 0},
		"false": {podfile.Annotations{OptOut: true, KernelHits: &no}, 0},
		"False": {podfile.Annotations{OptOut: true, KernelHits: &no}, 0},
		"no":    {podfile.Annotations{}, 2},
		"":      {podfile.Annotations{}, 2},
	} {
		w := Rules{}.For("dns", "shop", map[string]string{AnnotationSteer: value, AnnotationKernelHits: value})
		testutil.Equal(t, value+": ignored", want.ignored, len(w.Ignored))
		w.Ignored = nil
		testutil.Equal(t, fmt.Sprintf("%q", value), want.steer, w.Annotations)
	}
	w := Rules{Level: Level{Annotations: Ignore}}.For("dns", "shop", map[string]string{AnnotationSteer: "false", AnnotationKernelHits: "true"})
	if w.OptOut || w.KernelHits != nil || len(w.Ignored) != 2 {
		t.Errorf("ignored annotations were heeded: %+v", w)
	}
}

// If the node's resolv.conf cannot be read, levels that do not need it still apply.
func TestNodeUnknown(t *testing.T) {
	r := mustDecode(t, `{"options": ["ndots:2"], "namespaces": {"shop": {"policy": "Default"}}}`)
	w := r.For("dns", "shop", nil)
	if !w.NeedsNode() || !w.Wants() || mustDecode(t, `{"policy": "None"}`).For("dns", "x", nil).NeedsNode() {
		t.Error("what it needs of the node is wrong")
	}
	_, laid, ignored := w.Apply(node, errors.New("no such file"), "shop", own)
	want := []podfile.Ignored{{What: "dns.namespaces.shop", Why: "policy Default starts from the node's resolv.conf: no such file"}}
	testutil.Equal(t, "ignored", want, ignored)
	if !slices.Contains(laid.Options, "ndots:2") {
		t.Errorf("%+v", laid.Settings)
	}
}

func FuzzFor(f *testing.F) {
	f.Add(`{"options": ["ndots:2"], "namespaces": {"shop": {"policy": "Default"}}}`, "search: [a.b]", "shop")
	f.Add(`{"searches": ["a", "b"]}`, `{"policy": "None", "nameservers": ["::1"]}`, "")
	f.Fuzz(func(t *testing.T, rules, params, namespace string) {
		r, err := decode("dns", []byte(rules))
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "dns") {
					t.Fatalf("%q: no field in %q", rules, line)
				}
			}
			return
		}
		w := r.For("dns", namespace, map[string]string{AnnotationParams: params})
		all, laid, ignored := w.Apply(node, nil, namespace, own)
		if len(laid.Nameservers) == 0 {
			t.Fatalf("a pod without nameservers: %+v", laid.Settings)
		}
		if _, err := new(resolvconf.File).With(laid.Settings); err != nil {
			t.Fatal(err)
		}
		for _, i := range ignored {
			if i.What == "" || i.Why == "" || strings.Contains(i.Why, "\n") {
				t.Fatalf("ignored %+v", i)
			}
		}
		if all != nil && all.Policy != "" && all.Policy != resolvconf.None {
			t.Fatalf("policy %s is left", all.Policy)
		}
	})
}
