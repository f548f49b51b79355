package placement

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

func TestCheck(t *testing.T) {
	seconds := int64(5)
	tolerate := func(list ...v1alpha1.Toleration) v1alpha1.NodePlacement {
		return v1alpha1.NodePlacement{Tolerations: list}
	}
	for name, c := range map[string]struct {
		placement v1alpha1.NodePlacement
		want      string // the field; "" where it is good
	}{
		"unset":               {},
		"empty lists":         {placement: v1alpha1.NodePlacement{NodeSelector: map[string]v1alpha1.LabelValue{}, Tolerations: []v1alpha1.Toleration{}}},
		"label":               {placement: *selector("node-role.kubernetes.io/infra=", "a=b")},
		"all taints":          {placement: tolerate(v1alpha1.Toleration{Operator: "Exists"})},
		"seconds":             {placement: tolerate(v1alpha1.Toleration{Key: "a", Effect: "NoExecute", TolerationSeconds: &seconds})},
		"our own label":       {*selector(Label + "=" + Excluded), "nodeSelector"},
		"empty key":           {*selector("=x"), "nodeSelector"},
		"key with a space":    {*selector("a b=x"), "nodeSelector"},
		"key's prefix":        {*selector("A/b=x"), "nodeSelector"},
		"key's prefix, long":  {*selector(strings.Repeat("a", 254) + "/b=x"), "nodeSelector"},
		"key's prefix, dots":  {*selector("a..b/c=x"), "nodeSelector"},
		"key's name, long":    {*selector(strings.Repeat("a", 64) + "=x"), "nodeSelector"},
		"value with a slash":  {*selector("a=b/c"), "nodeSelector[a]"},
		"value, long":         {*selector("a=" + strings.Repeat("b", 64)), "nodeSelector[a]"},
		"no key, no operator": {tolerate(v1alpha1.Toleration{}), "tolerations[0].operator"},
		"no key, Equal":       {tolerate(v1alpha1.Toleration{Operator: "Equal"}), "tolerations[0].operator"},
		"bad key":             {tolerate(v1alpha1.Toleration{Key: "a b"}), "tolerations[0].key"},
		"bad value":           {tolerate(v1alpha1.Toleration{Key: "a", Value: "b/c"}), "tolerations[0].value"},
		"Exists with a value": {tolerate(v1alpha1.Toleration{Key: "a", Operator: "Exists", Value: "b"}), "tolerations[0].value"},
		"operator":            {tolerate(v1alpha1.Toleration{Key: "a"}, v1alpha1.Toleration{Key: "a", Operator: "Lt"}), "tolerations[1].operator"},
		"effect":              {tolerate(v1alpha1.Toleration{Key: "a", Effect: "NoDance"}), "tolerations[0].effect"},
		"seconds and effect":  {tolerate(v1alpha1.Toleration{Key: "a", Effect: "NoSchedule", TolerationSeconds: &seconds}), "tolerations[0].effect"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := Check("spec.nodePlacement", &c.placement)
			if c.want == "" {
				if len(faults) > 0 {
					t.Errorf("refused: %v", faults)
				}
				return
			}
			if len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), "spec.nodePlacement."+c.want+": ") {
				t.Errorf("%v, want one fault of %s", faults, c.want)
			}
		})
	}
}
