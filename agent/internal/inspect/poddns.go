package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PodDNS is the state of the DNS settings that are wanted for a pod.
type PodDNS struct {
	State   string   // of the overlay: as-given, overlaid, handed-on, waiting, no-lever, failed
	Reason  string   // why the overlay is not in effect
	Ignored []string // what is ignored, each with its reason
}

// checkPodDNS reports every overlay that did not reach its pod. Pods with the same trouble are one finding: it mostly comes from one
// line in the configuration, or from one Deployment.
func checkPodDNS(snap Snapshot, f *findings) {
	const ignored = "correct it; a pod takes it at its start"
	type trouble struct{ what, do string }
	names := map[trouble][]string{}
	laid := 0
	for _, pod := range snap.Pods {
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
			do = "fix that, then restart the pod"
		default:
			if pod.DNS.Reason == "" || len(pod.DNS.Ignored) > 0 {
				continue // no settings are wanted, or the ignored ones are reported already
			}
			do = "write resolvConf.mode: auto, or remove podDNS"
		}
		t := trouble{"the DNS settings wanted are not in effect (" + pod.DNS.State + "): " + pod.DNS.Reason, do}
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
		return "no pod has other settings than its own"
	}
	return fmt.Sprintf("%s with the settings wanted", plural(laid, "pod"))
}
