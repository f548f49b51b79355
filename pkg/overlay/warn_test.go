package overlay

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/testutil"
)

// Warnings reports each setting that a typical pod does not get as intended, with its field.
func TestWarnings(t *testing.T) {
	long := strings.Repeat("a", 60) + ".example"
	var domains []string
	for i := range 30 {
		domains = append(domains, fmt.Sprintf("%q", fmt.Sprintf("d%d", i)))
	}
	thirty := strings.Join(domains, ", ")
	for name, tc := range map[string]struct {
		rules string
		want  []string // field and the beginning of the message
	}{
		"nothing":           {`{}`, nil},
		"what can be laid":  {`{"nameservers": ["192.0.2.1", "192.0.2.2"], "searches": ["a.example"], "options": ["ndots:2", "edns0"]}`, nil},
		"the local address": {`{"nameservers": ["local"], "namespaces": {"shop": {"policy": "None", "nameservers": "local"}}}`, nil},
		"four nameservers":  {`{"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}`, []string{`dns: 3 of 4 nameservers are within the limit; beyond it: "192.0.2.3"`}},
		"none":              {`{"policy": "None", "options": ["ndots:1"]}`, []string{`dns: no pod with the kubelet's settings gets dns: overlay dropped: nameservers: it leaves the pod without any`}},
		"none, and its options": {`{"policy": "None", "options": ["ndots:abc", "x"], "namespaces": {"shop": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}}}`, []string{
			`dns: no pod with the kubelet's settings gets dns: overlay dropped: nameservers: it leaves the pod without any`,
			`dns: option "ndots:abc" needs a number`, `dns: option "x" is known to no resolver and has no effect`,
			`dns.namespaces.shop: 3 of 4 nameservers are within the limit`}},
		"none, and a namespace's": {`{"policy": "None", "namespaces":
			{"shop": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]}}}`, []string{
			`dns: no pod with the kubelet's settings gets dns: overlay dropped: nameservers: it leaves the pod without any`,
			`dns.namespaces.shop: 3 of 5 nameservers are within the limit`}},
		"unspecified address": {`{"nameservers": ["0.0.0.0"]}`, []string{`dns: no pod with the kubelet's settings gets nameserver 0.0.0.0 of dns: it is the unspecified address: write 127.0.0.1 or ::1 for a resolver in the pod`}},
		"30 domains":          {`{"searches": [` + thirty + `]}`, []string{`dns: 32 of 33 search domains`}},
		"a line for musl":     {`{"searches": ["` + strings.Join([]string{long, "b" + long, "c" + long}, `","`) + `"]}`, []string{"dns: the search line has"}},
		"many dots":           {`{"options": ["edns0", "ndots:16"]}`, []string{`dns: option "ndots:16" is taken as ndots:15`}},
		"no number":           {`{"options": [{"name": "timeout", "value": "soon"}]}`, []string{`dns: option "timeout:soon" needs a number`}},
		"an unknown option":   {`{"options": ["nonsense:3"]}`, []string{`dns: option "nonsense:3" is known to no resolver and has no effect`}},
		"all of them at once": {`{"options": ["one", "ndots:2", "two"]}`, []string{
			`dns: option "one" is known to no resolver and has no effect; resolvers know attempts, debug, edns0, `,
			`dns: option "two" is known to no resolver and has no effect`}},
		"in a namespace": {`{"namespaces": {"shop": {"options": ["a"]}, "web": {"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}}}`, []string{`dns.namespaces.shop: option "a" is known`, "dns.namespaces.web: 3 of 4"}},
		"once for all":   {`{"options": ["a"], "namespaces": {"shop": {"searches": ["x.example"]}}}`, []string{`dns: option "a"`}},
		"by both levels": {`{"nameservers": ["192.0.2.1", "192.0.2.2"], "namespaces": {"shop": {"nameservers": ["192.0.2.3"]}}}`, []string{"dns.namespaces.shop: 3 of 4"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := strict.JSON("", "dns", []byte(tc.rules))
			testutil.Must(t, err)
			var got []string
			for i, w := range Warnings(v, *mustDecode(t, tc.rules), []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}, "cluster.local") {
				text := w.Error()
				if i < len(tc.want) && strings.HasPrefix(text, tc.want[i]) {
					text = tc.want[i]
				}
				got = append(got, text)
			}
			testutil.Equal(t, "warnings", tc.want, got)
		})
	}
}
