{{- define "fastpath.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "fastpath.fullname" -}}
{{- $name := include "fastpath.name" . }}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $both .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- /* Labels that select a component's pods: (list . COMPONENT). They must not change with the version. */}}
{{- define "fastpath.selector" -}}
app.kubernetes.io/name: {{ include "fastpath.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- /* Labels of an object: (list . COMPONENT). */}}
{{- define "fastpath.labels" -}}
{{ include "fastpath.selector" . }}
{{- with first . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Labels of a pod: (list . COMPONENT). */}}
{{- define "fastpath.podLabels" -}}
{{ include "fastpath.selector" . }}
{{- with (first .).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fastpath.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "fastpath.serviceAccountName" -}}
{{- default (ternary (include "fastpath.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- /* Fields of a pod's spec that are the same for all components: (list . VALUES-OF-COMPONENT). */}}
{{- define "fastpath.podSpec" -}}
{{- $root := first . -}}
serviceAccountName: {{ include "fastpath.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with last . }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Relabelings of both monitors. The job is the one that alerts and dashboard expect, and the instance is the node. */}}
{{- define "fastpath.relabelings" -}}
- {action: replace, targetLabel: job, replacement: fastpath-export}
- {action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
{{- end }}
