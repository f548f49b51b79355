{{- /* pod gives each container its image and resources, and each CNI folder its place. */}}
{{- define "fleet.pod" }}
{{- $image := .root.Values.image }}
{{- range $container := concat (default list .pod.initContainers) .pod.containers }}
{{- $name := regexReplaceAll ":[^:/]*$" .image "" }}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) (base $name) }}{{ end }}
{{- with index $image.digests (base $name) }}{{ $name = printf "%s@%s" $name . }}
{{- else }}{{ $name = printf "%s:%s" $name (default $.root.Chart.AppVersion $image.tag) }}{{ end }}
{{- $_ := set . "image" $name }}
{{- if $image.pullPolicy }}{{ $_ := set . "imagePullPolicy" $image.pullPolicy }}{{ end }}
{{- with index $.root.Values.resources .name }}
{{- $resources := default dict $container.resources }}
{{- $_ := include "fleet.over" (dict "into" $resources "from" .) }}
{{- $_ := set $container "resources" $resources }}
{{- end }}
{{- end }}
{{- with $image.pullSecrets }}
{{- $secrets := list }}{{ range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $.pod "imagePullSecrets" $secrets }}
{{- end }}
{{- range .pod.volumes }}
{{- if eq .name "cni-bin" }}{{ $_ := set .hostPath "path" $.root.Values.paths.cniBin }}{{ end }}
{{- if eq .name "cni-conf" }}{{ $_ := set .hostPath "path" $.root.Values.paths.cniConf }}{{ end }}
{{- end }}
{{- end }}

{{- /* over puts fields over those of another mapping, field by field; null takes one away. */}}
{{- define "fleet.over" }}
{{- $into := .into }}
{{- range $key, $value := .from }}
{{- $was := index $into $key }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $into $key }}
{{- else if and (kindIs "map" $value) (kindIs "map" $was) }}
{{- $_ := include "fleet.over" (dict "into" $was "from" $value) }}
{{- else }}{{ $_ := set $into $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* config writes the fields of a configuration of that kind. */}}
{{- define "fleet.config" }}
{{- toYaml (merge (dict "apiVersion" "neardns.io/v1alpha1" "kind" .kind) .fields) }}
{{- end }}
