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

{{- /* remove takes the entry at a path that ends in a number out of its list. */}}
{{- define "neardns.remove" }}
{{- $keys := rest (splitList "/" .path) }}{{ $number := int (last $keys) }}{{ $keys = initial $keys }}
{{- $at := .object }}
{{- range initial $keys }}
{{- if kindIs "slice" $at }}{{ $at = index $at (int .) }}{{ else }}{{ $at = index $at . }}{{ end }}
{{- end }}
{{- $left := list }}
{{- range $n, $entry := index $at (last $keys) }}{{ if ne $n $number }}{{ $left = append $left $entry }}{{ end }}{{ end }}
{{- $_ := set $at (last $keys) $left }}
{{- end }}

{{- /* pod sets each container's image, the paths of the host's folders, and the values that apply to every pod. */}}
{{- define "neardns.pod" }}
{{- $values := .root.Values }}{{ $image := $values.image }}
{{- $platform := include "neardns.platform" .root | fromYaml }}
{{- range $container := concat (default list .pod.initContainers) .pod.containers }}
{{- $name := regexReplaceAll ":[^:/]*$" .image "" }}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) (base $name) }}{{ end }}
{{- with index $image.digests (base $name) }}{{ $name = printf "%s@%s" $name . }}
{{- else }}{{ $name = printf "%s:%s" $name (default $.root.Chart.AppVersion $image.tag) }}{{ end }}
{{- $_ := set . "image" $name }}
{{- if $image.pullPolicy }}{{ $_ := set . "imagePullPolicy" $image.pullPolicy }}{{ end }}
{{- with index $values.resources .name }}
{{- $resources := default dict $container.resources }}
{{- $_ := include "neardns.over" (dict "into" $resources "from" .) }}
{{- $_ := set $container "resources" $resources }}
{{- end }}
{{- if and (eq .name "agent") $values.extraEnv }}{{ $_ := set . "env" (concat (default list .env) $values.extraEnv) }}{{ end }}
{{- $mounts := list }}
{{- range .volumeMounts }}
{{- if eq .name "kubelet" }}{{ $_ := set . "mountPath" (trimSuffix "/" $platform.kubelet) }}{{ end }}
{{- if .mountPath }}{{ $mounts = append $mounts . }}{{ end }}
{{- end }}
{{- if $mounts }}{{ $_ := set . "volumeMounts" $mounts }}{{ end }}
{{- end }}
{{- with $image.pullSecrets }}
{{- $secrets := list }}{{ range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $.pod "imagePullSecrets" $secrets }}
{{- end }}
{{- $volumes := list }}
{{- range .pod.volumes }}
{{- if eq .name "cni-bin" }}{{ $_ := set .hostPath "path" $platform.cniBin }}{{ end }}
{{- if eq .name "cni-conf" }}{{ $_ := set .hostPath "path" $platform.cniConf }}{{ end }}
{{- if eq .name "kubelet" }}
{{- $_ := set . "hostPath" (dict "path" (trimSuffix "/" $platform.kubelet) "type" (ternary "Directory" "File" (hasSuffix "/" $platform.kubelet))) }}
{{- end }}
{{- if eq .name "kube-dns-corefile" }}{{ $_ := set .configMap "name" $platform.corefile }}{{ end }}
{{- if not (and .hostPath (not .hostPath.path)) }}{{ $volumes = append $volumes . }}{{ end }}
{{- end }}
{{- if $volumes }}{{ $_ := set .pod "volumes" $volumes }}{{ end }}
{{- if and (eq $values.platform "openshift") (not .pod.serviceAccountName) }}
{{- $_ := set .pod "serviceAccountName" (default "neardns" $values.nameOverride) }}
{{- end }}
{{- $keys := list "priorityClassName" }}
{{- if ne (default "" .name) "neardns-left" }}{{- /* that one cleans the nodes which placement left, and no other */}}
{{- $_ := set .pod "nodeSelector" (merge dict $values.nodeSelector .pod.nodeSelector) }}
{{- $keys = list "tolerations" "affinity" "priorityClassName" }}
{{- end }}
{{- range $key := $keys }}
{{- with index $values $key }}{{ $_ := set $.pod $key . }}{{ end }}
{{- end }}
{{- end }}

{{- /* workload applies the values to the pods of a DaemonSet, Deployment or StatefulSet. */}}
{{- define "neardns.workload" }}
{{- if has .object.kind (list "DaemonSet" "Deployment" "StatefulSet") }}
{{- $name := index .object.spec.template.metadata.labels "app.kubernetes.io/name" }}
{{- include "neardns.pod" (dict "root" .root "pod" .object.spec.template.spec "name" $name) }}
{{- $meta := .object.spec.template.metadata }}
{{- $_ := set $meta "labels" (merge $meta.labels .root.Values.podLabels) }}
{{- with .root.Values.podAnnotations }}{{ $_ := set $meta "annotations" (merge (default dict $meta.annotations) .) }}{{ end }}
{{- end }}
{{- end }}

{{- /* monitoring gives PodMonitors and PrometheusRules the values' labels and interval. */}}
{{- define "neardns.monitoring" }}
{{- $monitoring := .root.Values.monitoring }}
{{- if has .object.kind (list "PodMonitor" "PrometheusRule") }}
{{- $_ := set .object.metadata "labels" (merge dict $monitoring.labels .object.metadata.labels) }}
{{- range .object.spec.podMetricsEndpoints }}{{ if $monitoring.interval }}{{ $_ := set . "interval" $monitoring.interval }}{{ end }}{{ end }}
{{- end }}
{{- end }}

{{- /* platform is the row of files/platforms.yaml for the value platform, with the values paths and kubeDNSCorefile over it. */}}
{{- define "neardns.platform" }}
{{- $row := index (.Files.Get "files/platforms.yaml" | fromYaml) .Values.platform }}
{{- range $key, $value := .Values.paths }}{{ if $value }}{{ $_ := set $row $key (trimPrefix "none" $value) }}{{ end }}{{ end }}
{{- with .Values.kubeDNSCorefile }}{{ $_ := set $row "corefile" . }}{{ end }}
{{- toYaml $row }}
{{- end }}

{{- /* labels puts those that Kubernetes recommends, and the values' own, on an object. */}}
{{- define "neardns.labels" }}
{{- $labels := default dict .object.metadata.labels }}
{{- $name := default "neardns" (index $labels "app.kubernetes.io/name") }}
{{- $component := ternary "cache" (trimPrefix "neardns-" $name) (eq $name "neardns") }}
{{- if not (hasKey $labels "app.kubernetes.io/name") }}{{ $component = lower .object.kind }}{{ end }}
{{- $_ := set .object.metadata "labels" (merge $labels .root.Values.commonLabels (dict
  "app.kubernetes.io/name" $name
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/component" $component
  "app.kubernetes.io/part-of" "neardns"
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_"))) }}
{{- end }}

{{- /* over writes the fields of one mapping over those of another, field by field; null removes a field. Fields that equal those in base are skipped. */}}
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
