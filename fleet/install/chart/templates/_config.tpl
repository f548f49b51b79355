{{- /* config writes the fields of a configuration of that kind. */}}
{{- define "fleet.config" }}
{{- toYaml (merge (dict "apiVersion" "neardns.io/v1alpha1" "kind" .kind) .fields) }}
{{- end }}
