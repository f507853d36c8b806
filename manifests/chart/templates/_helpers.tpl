{{- define "dra-driver.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* The name of most objects: the release's, unless that lacks the chart's. */}}
{{- define "dra-driver.fullname" -}}
{{- $name := include "dra-driver.name" . -}}
{{- $release := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{ .Values.fullnameOverride | default $release | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "dra-driver.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{- define "dra-driver.selector" -}}
app.kubernetes.io/name: {{ include "dra-driver.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dra-driver.labels" -}}
{{ include "dra-driver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "dra-driver.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "dra-driver.fullname" .) }}
{{- else -}}
{{ required "serviceAccount.name is empty: name the account that the driver is to use, or set serviceAccount.create" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "dra-driver.supervisor" -}}
{{ include "dra-driver.fullname" . }}-mps-supervisor
{{- end }}

{{- define "dra-driver.cleanup" -}}
{{ include "dra-driver.fullname" . }}-cleanup
{{- end }}

{{- define "dra-driver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The settings by which the driver, and the init container before it, know the GPUs. */}}
{{- define "dra-driver.gpuEnv" -}}
# The volume `driver-root` is the same folder.
- {name: NVIDIA_DRIVER_ROOT, value: {{ .Values.nvidiaDriverRoot }}}
- {name: DRIVER_ROOT_CTR_PATH, value: /driver-root}
{{- with .Values.nvidiaDevRoot }}
- {name: NVIDIA_DEV_ROOT, value: {{ . }}}
{{- end }}
- {name: KUBELET_PLUGINS_DIRECTORY_PATH, value: {{ .Values.kubeletPlugin.kubeletPluginsDirectoryPath }}}
{{- with .Values.mig }}
- {name: MIG, value: {{ . | quote }}}
{{- end }}
{{- if or .Values.vfio .Values.featureGates.PassthroughSupport }}
- {name: VFIO, value: "true"}
{{- end }}
{{- with .Values.featureGates }}
- name: FEATURE_GATES
  value: {{ $gates := list }}{{ range $name, $on := . }}{{ $gates = append $gates (printf "%s=%t" $name $on) }}{{ end }}{{ join "," $gates }}
{{- end }}
{{- end }}

{{- /* The port of an address such as ":8080". */}}
{{- define "dra-driver.port" -}}
{{ splitList ":" . | last }}
{{- end }}

{{- define "dra-driver.shareConfigs" -}}
{{ .Values.config.name | default "share-configs" }}
{{- end }}

{{- /* Where all DaemonSets run. */}}
{{- define "dra-driver.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.kubeletPlugin.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.kubeletPlugin.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.kubeletPlugin.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* How many nodes there are, and how many of them the kubelet plugin runs on: "seen matched". */}}
{{- define "dra-driver.nodes" -}}
{{- $selector := .Values.kubeletPlugin.nodeSelector -}}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list (.Values.kubeletPlugin.affinity | default dict) -}}
{{- $nodes := dig "items" list (lookup "v1" "Node" "" "") -}}
{{- $matched := 0 -}}
{{- range $node := $nodes -}}
  {{- $labels := $node.metadata.labels | default dict -}}
  {{- $fits := empty $terms -}}
  {{- range $term := $terms -}}
    {{- $all := true -}}
    {{- range $one := $term.matchExpressions -}}
      {{- $has := hasKey $labels $one.key -}}
      {{- $in := and $has (has (get $labels $one.key) ($one.values | default list)) -}}
      {{- $holds := dict "In" $in "NotIn" (not $in) "Exists" $has "DoesNotExist" (not $has) -}}
      {{- if not (get $holds $one.operator | default false) }}{{ $all = false }}{{ end -}}
    {{- end -}}
    {{- if $all }}{{ $fits = true }}{{ end -}}
  {{- end -}}
  {{- range $key, $value := $selector -}}
    {{- if ne (get $labels $key) $value }}{{ $fits = false }}{{ end -}}
  {{- end -}}
  {{- if $fits }}{{ $matched = add1 $matched }}{{ end -}}
{{- end -}}
{{ len $nodes }} {{ $matched }}
{{- end }}

{{- /* The label that brings the kubelet plugin to a node: the selector's, or else this chart's own. */}}
{{- define "dra-driver.nodeLabel" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.kubeletPlugin.nodeSelector }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end -}}
{{ $pairs | join " " | default "nvidia.com/dra-driver=true" }}
{{- end }}
