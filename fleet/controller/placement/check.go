package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// Check validates a placement by the API server's own rules for nodeSelector and tolerations of a pod (ValidatePodSpec, which calls
// ValidateLabels, and ValidateTolerations in pkg/apis/core/validation, Kubernetes 1.36). The CRD's schema refuses nearly all errors
// already; Check also finds those that no regular expression in a schema can. It refuses a nodeSelector with the label neardns.io/cache,
// because the controller writes that label. Each error begins with the path of its field. The parameter at is the path of p, for example
// spec.nodePlacement.
func Check(at string, p *v1alpha1.NodePlacement) (faults []error) {
	add := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf(at+"."+field+": "+format, args...))
	}
	all := func(field, value string, messages []string) {
		if len(messages) > 0 {
			add(field, "%q: %s", value, strings.Join(messages, "; "))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.NodeSelector)) {
		all("nodeSelector", key, validation.IsQualifiedName(key))
		if key == Label {
			add("nodeSelector", "%q: it is what the controller writes, so that a placement by it would undo itself: select by another label", key)
		}
		value := string(p.NodeSelector[key])
		all(fmt.Sprintf("nodeSelector[%s]", key), value, validation.IsValidLabelValue(value))
	}
	for i, t := range p.Tolerations {
		item := fmt.Sprintf("tolerations[%d].", i)
		if t.Key != "" {
			all(item+"key", t.Key, validation.IsQualifiedName(t.Key))
		} else if t.Operator != "Exists" {
			add(item+"operator", "%q: it must be Exists where key is empty", t.Operator)
		}
		switch t.Operator {
		case "", "Equal":
			all(item+"value", t.Value, validation.IsValidLabelValue(t.Value))
		case "Exists":
			if t.Value != "" {
				add(item+"value", "%q: it must be empty where operator is Exists", t.Value)
			}
		default:
			add(item+"operator", "%q: it must be Equal or Exists", t.Operator)
		}
		switch t.Effect {
		case "", "NoSchedule", "PreferNoSchedule", "NoExecute":
		default:
			add(item+"effect", "%q: it must be NoSchedule, PreferNoSchedule or NoExecute, or empty for all", t.Effect)
		}
		if t.TolerationSeconds != nil && t.Effect != "NoExecute" {
			add(item+"effect", "%q: it must be NoExecute where tolerationSeconds is set", t.Effect)
		}
	}
	return faults
}
