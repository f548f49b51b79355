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
{{- range $container := concat (default list .pod.initContainers) .pod.containers }}
{{- $name := regexReplaceAll ":[^:/]*$" .image "" }}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) (base $name) }}{{ end }}
{{- with index $image.digests (base $name) }}{{ $name = printf "%s@%s" $name . }}
{{- else }}{{ $name = printf "%s:%s" $name (default $.root.Chart.AppVersion $image.tag) }}{{ end }}
{{- $_ := set . "image" $name }}
{{- if $image.pullPolicy }}{{ $_ := set . "imagePullPolicy" $image.pullPolicy }}{{ end }}
{{- with index $.root.Values.resources .name }}
{{- $resources := default dict $container.resources }}
{{- $_ := include "neardns.over" (dict "into" $resources "from" .) }}
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
{{- if eq .name "kube-dns-corefile" }}{{ $_ := set .configMap "name" $.root.Values.kubeDNSCorefile }}{{ end }}
{{- end }}
{{- end }}

{{- /* over puts fields over those of another mapping, field by field; null takes one away. What is as in base is left out. */}}
{{- define "neardns.over" }}
{{- $into := .into }}{{ $base := default dict .base }}
{{- range $key, $value := .from }}
{{- $was := index $into $key }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $into $key }}
{{- else if and (hasKey $base $key) (deepEqual $value (index $base $key)) }}
{{- else if and (kindIs "map" $value) (kindIs "map" $was) }}
{{- $_ := include "neardns.over" (dict "into" $was "from" $value "base" (index $base $key)) }}
{{- else }}{{ $_ := set $into $key $value }}
{{- end }}
{{- end }}
{{- end }}
