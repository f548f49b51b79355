package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
)

func checkPods(f *facts, r *findings) string {
	const admit = "let it reach the steering address (install/allow-steering-networkpolicy.yaml); kube-dns answers it meanwhile"
	for _, err := range f.podErrs {
		r.warn("delete the file if its pod is gone", "a pod's file cannot be read: %s", err)
	}
	counts := map[string]int{}
	mesh := 0
	for _, pod := range f.attachments {
		name := pods.Name(pod.File)
		counts[pod.State]++
		if pod.Mesh {
			mesh++
		}
		lost := slices.IndexFunc(pod.File.Decisions, func(d podfile.Decision) bool { return len(d.Unanswered) > 0 })
		switch {
		case lost >= 0:
			r.warn(admit+", and trials go on", "%s is bypassed: %s", name, pod.File.Decisions[lost].Reason)
		case pod.Err != nil:
			r.warn("make its netns visible to the agent, or delete its file if it is gone", "%s cannot be inspected: %s", name, pod.Err)
		case len(pod.Drift) > 0:
			r.warn("the agent repairs it when it starts and every 30 s while the fallback is verified; kube-dns answers the pod meanwhile",
				"%s: %s", name, some(pod.Drift))
		}
	}
	var bypassed []string
	for _, b := range f.agent.Bypassed {
		name := fmt.Sprintf("%s (to %s over %s)", cmp.Or(b.Pod, b.Source.String()), b.Address, b.Protocol)
		if !slices.Contains(bypassed, name) {
			bypassed = append(bypassed, name)
			r.warn(admit, "queries of %s do not reach the agent", name)
		}
	}
	if mesh > 0 {
		r.ok("%s with a service mesh that captures DNS in the pod: the mesh wins", cli.Plural(mesh, "pod"))
	}
	return fmt.Sprintf("%d steered, %d pending, %d bypassed, %d gone: every table is right", counts[pods.Steered], counts[pods.Pending],
		counts[pods.Bypassed], counts[pods.Gone])
}

// checkPodDNS reports the pods whose wanted DNS settings (podDNS) are not in effect. Pods with the same problem become one finding, because
// it mostly comes from one line of the configuration or from one Deployment.
func checkPodDNS(f *facts, r *findings) string {
	type trouble struct{ what, do string }
	names := map[trouble][]string{}
	inEffect := 0
	for _, pod := range f.attachments {
		if pod.State == "gone" {
			continue
		}
		for _, i := range pod.File.Ignored {
			t := trouble{i.What + " is ignored: " + i.Why, "correct it; a pod takes it at its start"}
			names[t] = append(names[t], pods.Name(pod.File))
		}
		dns := cmp.Or(pod.File.DNS, new(podfile.DNS))
		var do string
		switch dns.State {
		case podfile.Overlaid, podfile.HandedOn:
			inEffect++
			continue
		case podfile.Waiting:
			do = "start the agent, connected to the runtime's NRI"
		case podfile.NoMethod:
			do = "enable NRI in the runtime and mount its socket and the sandboxes' folder into the agent (install/overlays/pod-dns), or write " +
				"resolvConf.mode: off"
		case podfile.Failed:
			do = "fix that, then restart the pod"
		default:
			if dns.Reason == "" || len(pod.File.Ignored) > 0 {
				continue // no settings are wanted, or the ignored ones were reported above
			}
			do = "write resolvConf.mode: auto, or remove podDNS"
		}
		t := trouble{"the DNS settings wanted are not in effect (" + string(dns.State) + "): " + dns.Reason, do}
		names[t] = append(names[t], pods.Name(pod.File))
	}
	for _, t := range slices.SortedFunc(maps.Keys(names), func(a, b trouble) int { return strings.Compare(a.what, b.what) }) {
		r.warn(t.do, "%s: %s", some(names[t]), t.what)
	}
	if inEffect == 0 {
		return "no pod has other settings than its own"
	}
	return cli.Plural(inEffect, "pod") + " with the settings wanted"
}

func checkKernelHits(f *facts, r *findings) string {
	k, answerer, either := f.agent.KernelHits, "the agent", "the agent or kube-dns"
	if f.want.KernelOnly() {
		answerer, either = "kube-dns", "kube-dns"
	}
	if f.agentErr != nil {
		return "no agent runs"
	} else if k == nil {
		return "off: " + answerer + " answers them"
	}
	if k.Auto {
		if k.Fault != "" {
			return "off (kernelHits.mode: auto), " + answerer + " answers them: " + k.Fault
		}
		for _, p := range k.Refused {
			r.ok("%s is not answered in the kernel: %s", p.Pod, p.Why)
		}
		return "answered for " + cli.Plural(k.Pods, "pod") + ", from " + cli.Plural(k.Lent, "entry")
	}
	if k.Fault != "" {
		r.warn("fix what it names, or write kernelHits.mode: \"off\"; "+answerer+" answers them meanwhile", "none is answered in the kernel: %s",
			k.Fault)
	}
	for _, p := range k.Refused {
		r.warn("fix the reason, or exclude the pod or its namespace (kernelHits); "+either+" answers it meanwhile",
			"%s is not answered in the kernel: %s", p.Pod, p.Why)
	}
	if len(k.Served) > 0 && !r.bad {
		r.ok("answered in place of %s", some(texts(k.Served)))
	}
	return "answered for " + cli.Plural(k.Pods, "pod") + ", from " + cli.Plural(k.Lent, "entry")
}
