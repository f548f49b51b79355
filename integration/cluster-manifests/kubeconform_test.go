package clustermanifests

import (
	"cmp"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/yaml"
)

// TestKubeconform: kubeconform finds nothing in what kubectl and helm apply. Its schemas are of the Kubernetes release that `make cluster`
// runs, and of the manifests' own CustomResourceDefinitions.
func TestKubeconform(t *testing.T) {
	type values = map[string]any
	manifests, enabled := map[string]string{}, values{"enabled": true}
	for _, name := range kustomizations(t) {
		manifests[name] = render(t, name)
	}
	for name, c := range map[string]struct {
		chart  string
		values values
	}{
		"chart":            {nodeChart, nil},
		"chart with all":   {nodeChart, values{"hosts": enabled, "monitoring": enabled}},
		"chart, OpenShift": {nodeChart, values{"platform": "openshift"}},
		"fleet's chart with all": {fleetChart, values{"placement": values{"enabled": true, "clusterDNS": true}, "zones": enabled,
			"edge": enabled, "monitoring": enabled}},
	} {
		text := helm(t, c.chart, "kube-system", c.values)
		manifests[name] = text
	}
	files := schemas(t, manifests) + "/{{.Group}}-{{.ResourceAPIVersion}}-{{.ResourceKind}}.json"
	check, err := validator.New([]string{files}, validator.Opts{Strict: true,
		// Of other projects, whose schemas no Go module has. TestPrometheusRule, TestPodMonitor and TestChartPlatforms read them.
		SkipKinds: map[string]struct{}{"PrometheusRule": {}, "PodMonitor": {}, "SecurityContextConstraints": {}}})
	must(t, err)
	valid := 0
	validate := func(name, text string) (errs []error) {
		for _, r := range check.Validate(name, io.NopCloser(strings.NewReader(text))) {
			switch r.Status {
			case validator.Valid:
				valid++
			case validator.Error, validator.Invalid:
				errs = append(errs, r.Err)
			}
		}
		return errs
	}
	for name, text := range manifests {
		for _, err := range validate(name, text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if valid < 100 {
		t.Errorf("only %d objects were validated", valid)
	}
	// A validator that takes anything would find nothing.
	const set = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a}\n" +
		"spec: {selector: {}, template: {spec: {containers: [{name: a}]}}}\n"
	if errs := validate("good", set); len(errs) > 0 {
		t.Errorf("a good DaemonSet: %v", errs)
	}
	for name, change := range map[string][2]string{
		"unknown field": {"{name: a}]", "{name: a, imago: b}]"}, "missing field": {"selector: {}, ", ""},
		"wrong type":   {"name: a}\n", "name: [a]}\n"},
		"unknown kind": {"DaemonSet", "DemonSet"},
	} {
		if errs := validate(name, strings.Replace(set, change[0], change[1], 1)); len(errs) != 1 {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

type schema = map[string]any

// schemas writes a JSON schema for each kind in the manifests, and returns the folder. kubeconform's own are on a web site, and are made of
// the same OpenAPI document.
func schemas(t *testing.T, manifests map[string]string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	kinds, definitions := map[string]schema{}, openAPI(t)
	for name, definition := range definitions {
		strict(definition.(schema))
		of, _ := definition.(schema)["x-kubernetes-group-version-kind"].([]any)
		for _, k := range of {
			k := k.(schema)
			kinds[fileOf(k["group"].(string), k["version"].(string), k["kind"].(string))] = schema{"$ref": "#/definitions/" + name}
		}
	}
	used := map[string]bool{}
	for name, text := range manifests {
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var o struct {
				APIVersion, Kind string
				Spec             struct {
					Group    string
					Names    struct{ Kind string }
					Versions []struct {
						Name   string
						Schema struct{ OpenAPIV3Schema schema }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, doc)
			}
			group, version, _ := strings.Cut(o.APIVersion, "/")
			used[fileOf(group, cmp.Or(version, group), o.Kind)] = true
			if o.Kind == "CustomResourceDefinition" {
				for _, v := range o.Spec.Versions {
					strict(v.Schema.OpenAPIV3Schema)
					kinds[fileOf(o.Spec.Group, v.Name, o.Spec.Names.Kind)] = v.Schema.OpenAPIV3Schema
				}
			}
		}
	}
	for file := range used {
		if s := kinds[file]; s != nil {
			needed := schema{}
			reach(s, definitions, needed)
			s["definitions"] = needed
			text, err := json.Marshal(s)
			if err == nil {
				err = os.WriteFile(filepath.Join(folder, file), text, 0o644)
			}
			must(t, err)
		}
	}
	return folder
}

// fileOf is the name of a kind's schema, as TestKubeconform gives it to kubeconform, which takes the core API's version for its group.
func fileOf(group, version, kind string) string {
	return cmp.Or(group, version) + "-" + version + "-" + strings.ToLower(kind) + ".json"
}

// openAPI reads the API's description in the module of the Kubernetes release whose programs `make cluster` builds.
func openAPI(t *testing.T) (definitions schema) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	download.Dir = "../cluster/kubernetes"
	out, err := download.Output()
	var module struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err == nil {
		out, err = os.ReadFile(filepath.Join(module.Dir, "api/openapi-spec/swagger.json"))
	}
	var api struct{ Definitions schema }
	if err == nil {
		err = json.Unmarshal(out, &api)
	}
	if err != nil {
		t.Fatalf("read the API's description: %v\n%s", err, out)
	}
	api.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"].(schema)["format"] = "int-or-string" // an API server reads both
	return api.Definitions
}

// strict lets a schema's objects have only the fields that it lists, as the API server's strict field validation does.
func strict(s schema) {
	if s["format"] == "int-or-string" || s["x-kubernetes-int-or-string"] == true {
		delete(s, "format")
		s["type"] = []string{"integer", "string"}
	}
	properties, _ := s["properties"].(schema)
	if len(properties) > 0 && s["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] != true {
		s["additionalProperties"] = false
	}
	for _, p := range properties {
		strict(p.(schema))
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := s[key].(schema); ok {
			strict(inner)
		}
	}
}

// reach copies the definitions that part of a schema refers to, and those that these refer to, into found.
func reach(part any, definitions, found schema) {
	switch part := part.(type) {
	case schema:
		ref, _ := part["$ref"].(string) // JSONSchemaProps has a field of this name, which is no text
		if name := strings.TrimPrefix(ref, "#/definitions/"); name != "" && found[name] == nil {
			found[name] = definitions[name]
			reach(definitions[name], definitions, found)
		}
		for _, p := range part {
			reach(p, definitions, found)
		}
	case []any:
		for _, p := range part {
			reach(p, definitions, found)
		}
	}
}
