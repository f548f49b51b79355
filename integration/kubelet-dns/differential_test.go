package kubeletdns

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/pkg/resolvconf"
)

var (
	cases = flag.Int("cases", 20_000, "how many cases to compare")
	seed  = flag.Uint64("seed", 1, "of the first case; the others follow it")
)

// tally counts what the cases were about, so that a run which compares nothing is seen.
type tally map[string]int

// TestForm compares every case with the kubelet: the settings of a pod, the warnings about them, and the same with an overlay.
func TestForm(t *testing.T) {
	k, counts := newKubelet(t), tally{}
	for i := range *cases {
		if err := compare(k, *seed+uint64(i), nil, counts); err != nil {
			t.Fatalf("-seed %d: %v", *seed+uint64(i), err)
		}
	}
	t.Logf("%d cases, no unexplained difference: %v", *cases, counts)
	for _, about := range []string{
		"file at fault", "nameservers-cut", "searches-cut", "missing-cluster-dns", "unknown-policy", "D2 Custom", "D3 colon in a name",
		"overlay", "overlay cut", "overlay without nameserver",
	} {
		if counts[about] == 0 && *cases >= 20_000 {
			t.Errorf("no case was about %q: the generator has lost it", about)
		}
	}
}

// FuzzForm takes the node's file from the fuzzer and the rest from a seed.
func FuzzForm(f *testing.F) {
	f.Add(uint64(1), []byte("nameserver 10.0.0.1\nsearch a. . b\noptions ndots:2 x: rotate\n"))
	f.Add(uint64(2), []byte("\tsearch \u00a0a\u0085b\r\n;search c\n#search d\nnameserver"))
	k := newKubelet(f)
	f.Fuzz(func(t *testing.T, seed uint64, file []byte) {
		text := string(file)
		if err := compare(k, seed, &text, tally{}); err != nil {
			t.Fatal(err)
		}
	})
}

// compare shows the first thing in which the two sides differ without an explanation.
func compare(k *kubelet, seed uint64, file *string, counts tally) error {
	g := newGenerator(seed)
	n, p, o := g.node(), g.pod(), g.overlay()
	if file != nil {
		n.file, n.hasFile = *file, true
	}
	ours, err := ourNode(n)
	policy, differs := explain(p, counts)
	theirs, theirErr := k.form(n, policy, p, p.config)
	switch {
	case err != nil && theirErr != nil:
		counts["file at fault"]++
		return nil //nolint:nilerr // both refuse the file: that is what was to be seen
	case err != nil || theirErr != nil:
		return fmt.Errorf("file %q: one side alone has an error: %w", n.file, errors.Join(err, theirErr))
	}
	pod := resolvconf.Pod{Policy: resolvconf.Policy(p.policy), HostNetwork: p.hostNetwork, Namespace: p.namespace, Config: ourConfig(p.config)}
	got := resolvconf.Form(ours, pod, nil)
	if err := same(got, theirs, differs); err != nil {
		return fmt.Errorf("node %+v, pod %+v, dnsConfig %+v: %w", n, p, p.config, err)
	}
	for _, note := range got.Notes {
		counts[string(note.Code)]++
	}
	if differs {
		return nil // what the overlay is laid on differs too
	}
	if err := compareOverlay(k, n, ours, p, pod, o, got, theirs, counts); err != nil {
		return fmt.Errorf("node %+v, pod %+v, dnsConfig %+v, overlay %+v: %w", n, p, p.config, o, err)
	}
	return nil
}

// compareOverlay gives the kubelet what it formed itself and the overlay as one dnsConfig: an overlay is merged and cut as
// that is.
func compareOverlay(k *kubelet, n node, ours resolvconf.Node, p pod, pod resolvconf.Pod, o resolvconf.Overlay, own resolvconf.Result, base answer, counts tally) error {
	theirOwn := base
	if o.Policy != "" {
		var err error
		if base, err = k.form(n, v1.DNSPolicy(o.Policy), p, nil); err != nil {
			return err
		}
	}
	config := &v1.PodDNSConfig{
		Nameservers: slices.Concat(base.Nameservers, o.Nameservers),
		Searches:    slices.Concat(base.Searches, o.Searches),
	}
	for _, text := range slices.Concat(base.Options, o.Options) {
		name, value, _ := strings.Cut(text, ":")
		config.Options = append(config.Options, v1.PodDNSConfigOption{Name: name, Value: &value})
	}
	want, err := k.form(n, v1.DNSNone, p, config)
	if err != nil {
		return err
	}
	if want.events != "" {
		counts["overlay cut"]++
	}
	want.events += base.events
	counts["overlay"]++

	got := resolvconf.Form(ours, pod, &o)
	if len(want.Nameservers) == 0 && len(theirOwn.Nameservers) > 0 {
		counts["overlay without nameserver"]++
		if got.Refused == nil || !cmp.Equal(own.Settings, got.Settings) {
			return fmt.Errorf("leaves no nameserver, and got %+v", got)
		}
		return nil
	}
	if got.Refused != nil || !got.Overlaid {
		return fmt.Errorf("refused: %w", got.Refused)
	}
	if err := same(got, want, false); err != nil {
		return fmt.Errorf("with the overlay: %w", err)
	}

	return nil
}

// same compares settings and the warnings about them. The order of options is ours (D1): the kubelet has none.
func same(got resolvconf.Result, want answer, withoutOptions bool) error {
	if withoutOptions {
		got.Options, want.Options = nil, nil
	}
	ours := got.Settings
	ours.Options, want.Options = slices.Sorted(slices.Values(ours.Options)), slices.Sorted(slices.Values(want.Options))
	if !equal(want.Settings, ours) {
		return fmt.Errorf("(-kubelet +neardns):\n%s", cmp.Diff(want.Settings, ours, cmpopts.EquateEmpty()))
	}
	for code, want := range want.notes() {
		if has := slices.ContainsFunc(got.Notes, func(n resolvconf.Note) bool { return n.Code == code }); has != want {
			return fmt.Errorf("note %s is %v, the kubelet's event is %v: %v", code, has, want, got.Notes)
		}
	}
	return nil
}

func equal(a, b resolvconf.Settings) bool {
	return slices.Equal(a.Nameservers, b.Nameservers) && slices.Equal(a.Searches, b.Searches) && slices.Equal(a.Options, b.Options)
}

// explain finds the differences of README.md that this pod meets: the policy to give the kubelet instead, and whether the
// options will differ.
func explain(p pod, counts tally) (policy v1.DNSPolicy, options bool) {
	policy = v1.DNSPolicy(p.policy)
	if p.policy == "Custom" {
		counts["D2 Custom"]++
		policy = v1.DNSNone
	}
	if p.config != nil && slices.ContainsFunc(p.config.Options, func(o v1.PodDNSConfigOption) bool { return strings.Contains(o.Name, ":") }) {
		counts["D3 colon in a name"]++
		options = true
	}
	return policy, options
}

func ourNode(n node) (resolvconf.Node, error) {
	out := resolvconf.Node{ClusterDNS: n.clusterDNS, ClusterDomain: n.clusterDomain, Addresses: n.addresses}
	if !n.hasFile {
		return out, nil
	}
	host, err := resolvconf.Parse([]byte(n.file)).Host()
	out.Host = &host
	return out, err
}

// ourConfig writes a dnsConfig in the words of a resolv.conf.
func ourConfig(c *v1.PodDNSConfig) *resolvconf.Settings {
	if c == nil {
		return nil
	}
	s := &resolvconf.Settings{Nameservers: c.Nameservers, Searches: c.Searches}
	for _, o := range c.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		s.Options = append(s.Options, text)
	}
	return s
}
