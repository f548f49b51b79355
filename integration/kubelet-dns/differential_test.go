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

// TestForm compares every case with the kubelet: the settings of a policy, and those of a pod with an overlay and the warnings about them.
func TestForm(t *testing.T) {
	k, counts := newKubelet(t), tally{}
	for i := range *cases {
		if err := compare(k, *seed+uint64(i), nil, counts); err != nil {
			t.Fatalf("-seed %d: %v", *seed+uint64(i), err)
		}
	}
	t.Logf("%d cases, no unexplained difference: %v", *cases, counts)
	for _, about := range []string{
		"file at fault", "nameservers-cut", "searches-cut", "overlay", "overlay without nameserver",
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

// namespace is the one of every pod.
const namespace = "ns1"

// compare shows the first thing in which the two sides differ without an explanation.
func compare(k *kubelet, seed uint64, file *string, counts tally) error {
	g := newGenerator(seed)
	n, policy, own, o := g.node(), g.policy(), g.settings(), g.overlay()
	if file != nil {
		n.file = *file
	}
	ours, err := ourNode(n)
	theirs, theirErr := k.form(n, v1.DNSPolicy(policy), nil)
	switch {
	case err != nil && theirErr != nil:
		counts["file at fault"]++
		return nil //nolint:nilerr // both refuse the file: that is what was to be seen
	case err != nil || theirErr != nil:
		return fmt.Errorf("file %q: one side alone has an error: %w", n.file, errors.Join(err, theirErr))
	}
	if err := same(ours.Settings(policy, namespace), theirs); err != nil {
		return fmt.Errorf("node %+v, policy %s: %w", n, policy, err)
	}
	if err := compareOverlay(k, n, ours, o, own, counts); err != nil {
		return fmt.Errorf("node %+v, own settings %+v, overlay %+v: %w", n, own, o, err)
	}
	return nil
}

// compareOverlay gives the kubelet a pod's own settings, or those that it forms itself for the overlay's policy, and the overlay as one
// dnsConfig: an overlay is merged and cut as that is.
func compareOverlay(k *kubelet, n node, ours resolvconf.Node, o resolvconf.Overlay, own resolvconf.Settings, counts tally) error {
	theirOwn, err := k.form(n, v1.DNSNone, config(own))
	if err != nil {
		return err
	}
	base := theirOwn
	if o.Policy != "" {
		if base, err = k.form(n, v1.DNSPolicy(o.Policy), nil); err != nil {
			return err
		}
		base.events = ""
	}
	want, err := k.form(n, v1.DNSNone, config(base.Settings, o.Settings))
	if err != nil {
		return err
	}
	want.events += base.events
	counts["overlay"]++

	got, err := o.Spell(ours, namespace).Apply(own)
	if len(want.Nameservers) == 0 && len(theirOwn.Nameservers) > 0 {
		counts["overlay without nameserver"]++
		if err == nil {
			return fmt.Errorf("leaves no nameserver, and got %+v", got)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := same(got.Settings, want); err != nil {
		return err
	}
	for code, want := range want.notes() {
		if has := slices.ContainsFunc(got.Notes, func(n resolvconf.Note) bool { return n.Code == code }); has != want {
			return fmt.Errorf("note %s is %v, the kubelet's event is %v: %v", code, has, want, got.Notes)
		} else if has {
			counts[string(code)]++
		}
	}
	return nil
}

// config is a dnsConfig with all of the settings.
func config(all ...resolvconf.Settings) *v1.PodDNSConfig {
	c := &v1.PodDNSConfig{}
	for _, s := range all {
		c.Nameservers = append(c.Nameservers, s.Nameservers...)
		c.Searches = append(c.Searches, s.Searches...)
		for _, text := range s.Options {
			name, value, _ := strings.Cut(text, ":")
			c.Options = append(c.Options, v1.PodDNSConfigOption{Name: name, Value: &value})
		}
	}
	return c
}

// same compares settings. The order of options is ours (D1): the kubelet has none.
func same(ours resolvconf.Settings, want answer) error {
	ours.Options, want.Options = slices.Sorted(slices.Values(ours.Options)), slices.Sorted(slices.Values(want.Options))
	if diff := cmp.Diff(want.Settings, ours, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("(-kubelet +neardns):\n%s", diff)
	}
	return nil
}

func ourNode(n node) (resolvconf.Node, error) {
	host, err := resolvconf.Parse([]byte(n.file)).Host()
	return resolvconf.Node{Host: host, ClusterDNS: n.clusterDNS, ClusterDomain: n.clusterDomain}, err
}
