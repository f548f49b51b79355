package inspect

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
)

// There is a warning until a pod has its settings, and while one has to wait for them.
func TestPodDNSWarning(t *testing.T) {
	wants := overlay.Rules{Level: overlay.Level{Overlay: resolvconf.Overlay{Settings: resolvconf.Settings{Options: []string{"ndots:1"}}}}}
	pod := func(state podfile.DNSState) podfile.File {
		return podfile.File{PodNamespace: "shop", PodName: "web", DNS: &podfile.DNS{State: state, Reason: "the runtime makes it later"}}
	}
	for name, tc := range map[string]struct {
		conf  config.Node
		files []podfile.File
		want  string
	}{
		"nothing is wanted":       {config.Node{}, []podfile.File{pod(podfile.AsGiven)}, ""},
		"it is off":               {config.Node{PodDNS: wants, ResolvConf: config.ResolvConf{Mode: "off"}}, nil, ""},
		"nobody knows yet":        {config.Node{PodDNS: wants}, []podfile.File{pod(podfile.AsGiven), {DNS: &podfile.DNS{State: podfile.HandedOn}}}, "apply install/overlays/pod-dns before any pod is made"},
		"one has them":            {config.Node{PodDNS: wants}, []podfile.File{pod(podfile.AsGiven), pod(podfile.Overlaid)}, ""},
		"one waits":               {config.Node{PodDNS: wants}, []podfile.File{pod(podfile.Overlaid), pod(podfile.Waiting)}, "pod shop/web waits for its settings (the runtime makes it later): apply install/overlays/pod-dns"},
		"one waited for too long": {config.Node{PodDNS: wants}, []podfile.File{pod(podfile.NoMethod)}, "shop/web"},
	} {
		if got := PodDNSWarning(&tc.conf, tc.files); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
