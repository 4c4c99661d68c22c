{{- define "lithify.labels" -}}
app.kubernetes.io/name: lithify
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lithify.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "lithify.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the pods of coordinator and workers have in common, but for their container's name and arguments. */}}
{{- define "lithify.podSettings" -}}
serviceAccountName: {{ include "lithify.account" . }}
enableServiceLinks: false
# SIGTERM gives back what is unfinished.
terminationGracePeriodSeconds: 60
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: config
    configMap: {name: {{ .Release.Name }}}
{{- end }}

{{- define "lithify.podMetadata" -}}
annotations:
  # A changed setting is another pod.
  checksum/config: {{ .Values.config | sha256sum | quote }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .Values.metricsPort | quote }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "lithify.container" -}}
image: {{ include "lithify.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
ports:
  - {name: metrics, containerPort: {{ .Values.metricsPort }}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  # What merges rows may have to be compiled first, and Spark be started.
  initialDelaySeconds: 30
  periodSeconds: 20
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 10
volumeMounts:
  - {name: config, mountPath: /etc/lithify, readOnly: true}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  - {name: LITHIFY_CONFIG, value: /etc/lithify/lithify.toml}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "lithify.arguments" -}}
- --log-format=json
- --metrics-port={{ .Values.metricsPort }}
- --set=metrics.host=0.0.0.0
{{- range .Values.datasets }}
- {{ . | quote }}
{{- end }}
{{- end }}
