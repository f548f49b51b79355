package clustermanifests

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rights are what the one account of a manifest may do, a line each, by namespace.
func rights(cluster *rbacv1.ClusterRole, objects []runtime.Object) []string {
	var out []string
	note := func(where string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			line := where + " " + strings.Join(r.Verbs, ",") + " " + strings.Trim(strings.Join(r.APIGroups, ",")+"/"+strings.Join(r.Resources, ","), "/")
			out = append(out, strings.TrimSpace(line+" "+strings.Join(r.ResourceNames, ",")))
		}
	}
	note("cluster:", cluster.Rules)
	for _, r := range all[*rbacv1.Role](objects) {
		note(r.Namespace+":", r.Rules)
	}
	slices.Sort(out)
	return out
}
