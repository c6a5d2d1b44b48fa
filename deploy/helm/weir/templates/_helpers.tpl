{{- define "weir.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.tokenSecret" -}}
{{- if .Values.status.existingSecret -}}
{{- .Values.status.existingSecret -}}
{{- else -}}
{{- printf "%s-status" (include "weir.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* The pod of a group; takes root, group and once. */}}
{{- define "weir.pod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
serviceAccountName: {{ include "weir.serviceAccount" $root }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml $v.podSecurityContext | nindent 2 }}
{{- with $v.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: weir
    image: "{{ $v.image.repository }}:{{ $v.image.tag | default $root.Chart.AppVersion }}"
    imagePullPolicy: {{ $v.image.pullPolicy }}
    securityContext:
      {{- toYaml $v.securityContext | nindent 6 }}
    args:
      - run
      - /etc/weir/pipeline.yaml
      {{- if .once }}
      - --once
      - --output=json
      {{- else }}
      - --listen=0.0.0.0:8080
      {{- end }}
      - --log-level={{ $v.logLevel }}
      - --log-format=json
      {{- range .group.queries }}
      - --query={{ . }}
      {{- end }}
      {{- range $v.extraArgs }}
      - {{ . | quote }}
      {{- end }}
    env:
      - {name: WEIR_DATA, value: /var/lib/weir}
      - {name: HOME, value: /var/lib/weir}
      - name: WEIR_STATUS_TOKEN
        valueFrom: {secretKeyRef: {name: {{ include "weir.tokenSecret" $root }}, key: token}}
      {{- with $v.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with $v.envFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if not .once }}
    ports:
      - {name: http, containerPort: 8080, protocol: TCP}
    startupProbe:
      httpGet: {path: /livez, port: http}
      periodSeconds: 5
      failureThreshold: {{ ceil (divf $v.startupSeconds 5) }}
    livenessProbe:
      httpGet: {path: /livez, port: http}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: http}
      periodSeconds: 10
      timeoutSeconds: 5
    {{- end }}
    resources:
      {{- toYaml (.group.resources | default $v.resources) | nindent 6 }}
    volumeMounts:
      - {name: pipeline, mountPath: /etc/weir, readOnly: true}
      - {name: data, mountPath: /var/lib/weir}
      - {name: tmp, mountPath: /tmp}
      {{- with $v.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* The volumes of a group but for data. */}}
{{- define "weir.volumes" -}}
- name: pipeline
  configMap: {name: {{ include "weir.fullname" .root }}-{{ .group.name }}}
- {name: tmp, emptyDir: {}}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.claim" -}}
accessModes:
  {{- toYaml .Values.persistence.accessModes | nindent 2 }}
{{- with .Values.persistence.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .Values.persistence.size }}}}
{{- end -}}
