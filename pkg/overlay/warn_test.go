package overlay

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/strict"
)

// Warnings reports each setting that a typical pod does not get as intended, with its field.
func TestWarnings(t *testing.T) {
	long := strings.Repeat("a", 60) + ".example"
	for name, tc := range map[string]struct {
		rules string
		want  []string // field and the beginning of the message
	}{
		"nothing":             {`{}`, nil},
		"what can be laid":    {`{"nameservers": ["192.0.2.1", "192.0.2.2"], "searches": ["a.example"], "options": ["ndots:2", "edns0"]}`, nil},
		"the local address":   {`{"nameservers": ["local"], "namespaces": {"shop": {"policy": "None", "nameservers": "local"}}}`, nil},
		"four nameservers":    {`{"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}`, []string{`dns.nameservers: 3 of 4 nameservers are within the limit; beyond it: "192.0.2.3"`}},
		"and refused":         {`{"excess": "refuse", "nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}`, []string{`dns: no pod with the kubelet's settings gets it: overlay dropped: 3 of 4`}},
		"none":                {`{"policy": "None", "options": ["ndots:1"]}`, []string{`dns: no pod with the kubelet's settings gets it: overlay dropped: nameservers: it leaves the pod without any`}},
		"unspecified address": {`{"nameservers": ["0.0.0.0"]}`, []string{`dns.nameservers: 0.0.0.0 is left out: it is the unspecified address: write 127.0.0.1 or ::1 for a resolver in the pod`}},
		"six domains":         {`{"limits": "glibc-legacy", "searches": ["a.a", "b.b", "c.c", "d.d"]}`, []string{`dns.searches: 6 of 7 search domains`}},
		"search is searches":  {`{"limits": "glibc-legacy", "search": ["a.a", "b.b", "c.c", "d.d"]}`, []string{`dns.search: 6 of 7 search domains`}},
		"a line for musl":     {`{"searches": ["` + strings.Join([]string{long, "b" + long, "c" + long}, `","`) + `"]}`, []string{"dns.searches: the search line has"}},
		"many dots":           {`{"options": ["edns0", "ndots:16"]}`, []string{`dns.options[1]: option "ndots:16" is taken as ndots:15`}},
		"no number":           {`{"options": [{"name": "timeout", "value": "soon"}]}`, []string{`dns.options[0]: option "timeout:soon" needs a number`}},
		"an unknown option":   {`{"options": ["nonsense:3"]}`, []string{`dns.options[0]: option "nonsense:3" is known to no resolver and has no effect`}},
		"dropped":             {`{"unknownOptions": "drop", "options": ["ndots:2", "nonsense:3"]}`, []string{`dns.options[1]: option "nonsense:3" is known to no resolver, and unknownOptions is drop`}},
		"the level refused":   {`{"unknownOptions": "refuse", "options": ["nonsense"]}`, []string{`dns: no pod with the kubelet's settings gets it: option "nonsense" is known to no resolver, and unknownOptions is refuse`}},
		"all of them at once": {`{"unknownOptions": "refuse", "options": ["one", "ndots:2", "two"]}`, []string{
			`dns: no pod with the kubelet's settings gets it: option "one" is known to no resolver, and unknownOptions is refuse; resolvers know attempts, debug, edns0, `,
			`dns: no pod with the kubelet's settings gets it: option "two" is known to no resolver, and unknownOptions is refuse`}},
		"excess and a wrong value": {`{"excess": "refuse", "nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
			"options": ["ndots:abc", "nonsense"]}`, []string{
			`dns: no pod with the kubelet's settings gets it: overlay dropped: 3 of 4`,
			`dns.options[0]: option "ndots:abc" needs a number`,
			`dns.options[1]: option "nonsense" is known to no resolver and has no effect`}},
		"an unknown option and excess": {`{"unknownOptions": "refuse", "excess": "refuse", "namespaces": {"shop": {
			"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"], "options": ["one", "ndots:16"]}}}`, []string{
			`dns.namespaces.shop: no pod with the kubelet's settings gets it: option "one" is known to no resolver, and unknown`,
			`dns.namespaces.shop.nameservers: 3 of 4 nameservers are within the limit`,
			`dns.namespaces.shop.options[1]: option "ndots:16" is taken as ndots:15`}},
		"in a namespace": {`{"namespaces": {"shop": {"options": ["a"]}, "web": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}}}`, []string{`dns.namespaces.shop.options[0]: option "a" is known`, "dns.namespaces.web.nameservers: 3 of 4"}},
		"once for all":   {`{"options": ["a"], "namespaces": {"shop": {"searches": ["x.example"]}}}`, []string{`dns.options[0]: option "a"`}},
		"by both levels": {`{"nameservers": ["192.0.2.1", "192.0.2.2"], "namespaces": {"shop": {"nameservers": ["192.0.2.3"]}}}`, []string{"dns.namespaces.shop.nameservers: 3 of 4"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := strict.JSON("", "dns", []byte(tc.rules))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, w := range Warnings(v, *mustDecode(t, tc.rules), []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}, "cluster.local") {
				text := w.Error()
				if i < len(tc.want) && strings.HasPrefix(text, tc.want[i]) {
					text = tc.want[i]
				}
				got = append(got, text)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// An overlay's options that no resolver knows are kept, dropped, or cause its level to be ignored. The pod's own options always stay.
func TestUnknownOptions(t *testing.T) {
	own := settings("10.96.0.10", "a.example", "ndots:5 own-nonsense")
	for unknown, want := range map[string]struct{ options, ignored string }{
		"keep": {"ndots:2 own-nonsense x:1 z y", ""},
		"drop": {"ndots:2 own-nonsense", `option x:1 of dns: option "x:1" is known to no resolver, and unknownOptions is drop|` +
			`option z of dns: option "z" is known to no resolver, and unknownOptions is drop|` +
			`option y of annotation neardns.io/dns-params: option "y" is known to no resolver, and unknownOptions is drop`},
		"refuse": {"ndots:5 own-nonsense", `dns: option "x:1" is known to no resolver, and unknownOptions is refuse|` +
			`dns: option "z" is known to no resolver, and unknownOptions is refuse|` +
			`annotation neardns.io/dns-params: option "y" is known to no resolver, and unknownOptions is refuse`},
	} {
		r := mustDecode(t, `{"unknownOptions": "`+unknown+`", "options": ["ndots:2", "x:1", "z"]}`)
		_, laid, ignored := r.For("dns", "shop", map[string]string{AnnotationParams: "options: [\"y\"]\n"}).Apply(node, nil, "shop", own)
		var told []string
		for _, i := range ignored {
			told = append(told, i.What+": "+i.Why)
		}
		if got := strings.Join(laid.Options, " "); got != want.options || strings.Join(told, "|") != want.ignored {
			t.Errorf("%s: %s, ignored %q", unknown, got, told)
		}
	}
}
