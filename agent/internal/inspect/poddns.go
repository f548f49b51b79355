package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PodDNS is what became of the DNS settings that somebody wants for an attachment's pod.
type PodDNS struct {
	State   string   // of the overlay: as-given, overlaid, handed-on, waiting, no-lever, failed
	Reason  string   // why it is not laid
	Ignored []string // what was left out, each with its reason
}

// checkPodDNS tells of every overlay that did not reach its pod. Pods with the same trouble are one finding: it mostly comes from one
// line in the configuration, or from one Deployment.
func checkPodDNS(p Picture, f *findings) {
	const ignored = "correct it; a pod takes it at its start"
	type trouble struct{ what, do string }
	names := map[trouble][]string{}
	laid := 0
	for _, pod := range p.Pods {
		if pod.State == "gone" {
			continue
		}
		for _, i := range pod.DNS.Ignored {
			t := trouble{i, ignored}
			names[t] = append(names[t], pod.Name)
		}
		var do string
		switch pod.DNS.State {
		case "overlaid", "handed-on":
			laid++
			continue
		case "waiting":
			do = "start the agent, connected to the runtime's NRI"
		case "no-lever":
			do = "enable NRI in the runtime and mount its socket and the sandboxes' folder into the agent (install/overlays/pod-dns), or write " +
				"resolvConf.mode: off"
		case "failed":
			do = "mend that, then restart the pod"
		default:
			if pod.DNS.Reason == "" || len(pod.DNS.Ignored) > 0 {
				continue // nothing is wanted, or what is said about that says it
			}
			do = "write resolvConf.mode: auto, or take podDNS out"
		}
		t := trouble{"the DNS settings wanted are not laid (" + pod.DNS.State + "): " + pod.DNS.Reason, do}
		names[t] = append(names[t], pod.Name)
	}
	order := slices.SortedFunc(maps.Keys(names), func(a, b trouble) int { return strings.Compare(a.what, b.what) })
	for _, t := range order {
		f.add(Warn, t.do, "%s: %s", some(names[t]), t.what)
	}
	if f.silent() {
		f.ok("%s", laidText(laid))
	}
}

func laidText(laid int) string {
	if laid == 0 {
		return "no pod is to have other settings than its own"
	}
	return fmt.Sprintf("%s with the settings wanted", plural(laid, "pod"))
}
