{{- /* add puts a value at a path of RFC 6902, section 4.1: a key of an object, or /- at the end of a list. Lists on the way are named by number. */}}
{{- define "neardns.add" }}
{{- $keys := rest (splitList "/" .path) }}
{{- $ends := eq (last $keys) "-" }}
{{- if $ends }}{{ $keys = initial $keys }}{{ end }}
{{- $at := .object }}
{{- range initial $keys }}
{{- if kindIs "slice" $at }}{{ $at = index $at (int .) }}{{ else }}{{ $at = index $at . }}{{ end }}
{{- end }}
{{- $value := .value }}
{{- if $ends }}{{ $value = append (index $at (last $keys)) .value }}{{ end }}
{{- $_ := set $at (last $keys) $value }}
{{- end }}

{{- /* pod gives each container its image and each CNI folder its place. */}}
{{- define "neardns.pod" }}
{{- $image := .root.Values.image }}
{{- range concat (default list .pod.initContainers) .pod.containers }}
{{- $name := regexReplaceAll ":[^:/]*$" .image "" }}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) (base $name) }}{{ end }}
{{- $_ := set . "image" (printf "%s:%s" $name (default $.root.Chart.AppVersion $image.tag)) }}
{{- if $image.pullPolicy }}{{ $_ := set . "imagePullPolicy" $image.pullPolicy }}{{ end }}
{{- end }}
{{- range .pod.volumes }}
{{- if eq .name "cni-bin" }}{{ $_ := set .hostPath "path" $.root.Values.paths.cniBin }}{{ end }}
{{- if eq .name "cni-conf" }}{{ $_ := set .hostPath "path" $.root.Values.paths.cniConf }}{{ end }}
{{- end }}
{{- end }}

{{- /* config writes the fields of a configuration of that kind. */}}
{{- define "neardns.config" }}
{{- toYaml (merge (dict "apiVersion" "neardns.io/v1alpha1" "kind" .kind) .fields) }}
{{- end }}
