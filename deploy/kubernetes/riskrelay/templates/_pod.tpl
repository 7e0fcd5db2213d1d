{{/* What the pods of service, worker and migration share. */}}

{{- define "riskrelay.labels" -}}
app.kubernetes.io/name: riskrelay
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The security of a pod, its volumes and where it may run. */}}
{{- define "riskrelay.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: data
    emptyDir: {sizeLimit: 1Gi}
  - name: tmp
    emptyDir: {sizeLimit: 256Mi}
  - name: secrets
    secret:
      secretName: {{ .Values.secret.name }}
      defaultMode: 0440
{{- end }}

{{/* A container's image, security, settings and mounts. */}}
{{- define "riskrelay.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /var/lib/riskrelay}
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /run/secrets/riskrelay, readOnly: true}
env:
{{- range .Values.secret.keys }}
  - {name: {{ . }}_FILE, value: /run/secrets/riskrelay/{{ . }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
  {{- /* A number of a values file is a float, which quote alone would write as 1e+06. */}}
  - {name: {{ $name }}, value: {{ kindIs "float64" $value | ternary (toJson $value) $value | quote }}}
{{- end }}
{{- end }}

{{- define "riskrelay.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ toYaml . | nindent 8 }}
{{- end }}
