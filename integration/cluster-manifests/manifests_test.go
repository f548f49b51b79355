package clustermanifests

import (
	"strings"
	"testing"
)

// head stands before what is rendered of the base, for those who apply one file.
const head = `# neardns on every node, in one file: kubectl apply -f neardns.yaml
#
# This is what kubectl kustomize install/base prints, where the reasons for all of it stand; make update-golden writes it. Before:
# see that kube-proxy (or what stands for it) runs on the nodes. After: pods made from then on are steered; older ones keep
# asking kube-dns directly. To remove: kubectl delete -f neardns.yaml, then kubectl apply -k install/uninstall. Deleting alone
# leaves rules that give every question to kube-dns: DNS works, uncached.
`

// The single file is the base, so that nobody keeps two of them.
func TestSingleFile(t *testing.T) {
	golden(t, install+"/neardns.yaml", head+render(t, "base"))
}

// Each overlay changes of the base what its golden file shows, and nothing else.
func TestOverlays(t *testing.T) {
	base := render(t, "base")
	overlays := 0
	for _, name := range kustomizations(t) {
		overlay, ok := strings.CutPrefix(name, "overlays/")
		if !ok {
			continue
		}
		overlays++
		t.Run(overlay, func(t *testing.T) {
			changes := diff(base, render(t, name))
			if changes == "" {
				t.Error("it changes nothing")
			}
			golden(t, "testdata/"+overlay+".diff", changes)
		})
	}
	if overlays < 5 {
		t.Errorf("%d overlays, there should be five", overlays)
	}
}
