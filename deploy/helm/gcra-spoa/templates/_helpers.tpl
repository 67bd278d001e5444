{{- define "gcra-spoa.name" -}}
{{- regexReplaceAll "[-_.]+$" (default .Chart.Name .Values.nameOverride | trunc 63) "" }}
{{- end }}

{{/* Services have a number behind it, and no dots in it. */}}
{{- define "gcra-spoa.fullname" -}}
{{- $name := include "gcra-spoa.name" . }}
{{- $full := printf "%s-%s" .Release.Name $name }}
{{- if .Values.fullnameOverride }}
{{- $full = .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- $full = .Release.Name }}
{{- end }}
{{- $full = regexReplaceAll "[^a-z0-9-]" (lower $full) "-" | trunc 60 }}
{{- regexReplaceAll "-+$" $full "" }}
{{- end }}

{{- define "gcra-spoa.selector" -}}
app.kubernetes.io/name: {{ include "gcra-spoa.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gcra-spoa.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "gcra-spoa.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gcra-spoa.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "gcra-spoa.storeSettings" -}}
url = {{ .Values.store.url | toJson }}
{{- if and .Values.store.existingSecret .Values.store.passwordKey }}
password_file = {{ printf "/etc/gcra-spoa-store/%s" .Values.store.passwordKey | toJson }}
{{- end }}
{{- with .Values.store.settings }}
{{ . | trim }}
{{- end }}
{{- end }}

{{/* The configuration file. A JSON string is a TOML string, too. */}}
{{- define "gcra-spoa.config" -}}
{{- if .Values.config }}
{{- .Values.config | trim }}
{{- else -}}
answer = ["policy", "reason", "retry_after"]

[policy.{{ .Values.limit.message }}]
{{- $limit := .Values.limit.rate }}
{{- $constant := has $limit (list "deny" "unlimited") }}
{{- if $constant }}
limits = {{ $limit | toJson }}
{{- else }}
{{- if not (kindIs "invalid" .Values.limit.burst) }}
{{- $limit = printf "%s burst %d" $limit (int64 .Values.limit.burst) }}
{{- end }}
limits = [{{ $limit | toJson }}]
{{- end }}
key = {{ .Values.limit.key | toJson }}
{{- if and .Values.store.url (not $constant) }}
shared = true
{{- end }}
{{- end }}
{{- if .Values.store.url }}

[store]
{{ include "gcra-spoa.storeSettings" . }}
{{- end }}
{{- end }}

{{/* In MiB: the table, the file of leases, and the same again at a resize. */}}
{{- define "gcra-spoa.tableLimit" -}}
{{- if .Values.table.sizeLimit -}}
{{ .Values.table.sizeLimit }}
{{- else -}}
{{ add (div (mul (int64 .Values.table.slots) 80) 1048576) 8 }}Mi
{{- end }}
{{- end }}

{{- define "gcra-spoa.validateNames" -}}
{{- if not (regexMatch "^([a-z]([-a-z0-9]*[a-z0-9])?)?$" (.Values.fullnameOverride | default "")) }}
{{- fail (printf "\n\n'fullnameOverride' is '%s'. Write small letters, digits and '-', with a letter first and no '-' at the end.\n" .Values.fullnameOverride) }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9][-A-Za-z0-9_.]*)?$" (.Values.nameOverride | default "")) }}
{{- fail (printf "\n\n'nameOverride' is '%s'. Write letters, digits, '-', '_' and '.', with a letter or a digit first.\n" .Values.nameOverride) }}
{{- end }}
{{- if not (regexMatch "^[a-z]" (include "gcra-spoa.fullname" .)) }}
{{- fail (printf "\n\nThe name of a Service has to begin with a letter, and the release is '%s'. Choose another name, or set 'fullnameOverride'.\n" .Release.Name) }}
{{- end }}
{{- end }}

{{/* A key that is there twice is refused by Kubernetes, or the last one wins. */}}
{{- define "gcra-spoa.validateKeys" -}}
{{- $labels := keys (include "gcra-spoa.labels" . | fromYaml) }}
{{- $taken := dict
  "podLabels" (list .Values.podLabels (keys (include "gcra-spoa.selector" . | fromYaml)))
  "podAnnotations" (list .Values.podAnnotations (list "gcra-spoa/store"))
  "files" (list .Values.files (list "gcra-spoa.toml"))
  "serviceMonitor.labels" (list .Values.serviceMonitor.labels $labels) }}
{{- range $value, $pair := $taken }}
{{- range $key := index $pair 1 }}
{{- if hasKey (index $pair 0 | default dict) $key }}
{{- fail (printf "\n\n'%s' has '%s', which the chart writes itself. Remove it there.\n" $value $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* As `gcra-spoa check`, but for what depends on rate and burst together. */}}
{{- define "gcra-spoa.validateRate" -}}
{{- $rate := .Values.limit.rate }}
{{- if not (has $rate (list "deny" "unlimited")) }}
{{- $form := "^([0-9]*[.]?[0-9]+)/([0-9]*)(ms|s|sec|seconds?|m|min|minutes?|h|hr|hours?|d|days?)$" }}
{{- if not (and (regexMatch $form $rate) (regexMatch "^[0-9.]*[1-9]" $rate) (regexMatch "/(0*[1-9][0-9]*)?[a-z]" $rate)) }}
{{- fail (printf "\n\n'limit.rate' is '%s'. Write a count and a period, such as 100/s, 5000/min or 1/10s, or deny or unlimited.\n" $rate) }}
{{- end }}
{{- $digits := regexReplaceAll $form $rate "${1}" }}
{{- $count := float64 $digits }}
{{- $units := regexReplaceAll $form $rate "${2}" | default "1" | float64 }}
{{- $unit := regexReplaceAll $form $rate "${3}" }}
{{- $seconds := dict "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 }}
{{- $period := mulf $units (eq $unit "ms" | ternary 0.001 (get $seconds (trunc 1 $unit))) }}
{{- if gt $period 18446744073.0 }}
{{- fail (printf "\n\n'limit.rate' is '%s'. The longest period is 584 years.\n" $rate) }}
{{- end }}
{{- if gt $count (mulf $period 1000000000.0) }}
{{- fail (printf "\n\n'limit.rate' is '%s'. The fastest rate is 1000000/ms; for no limit write unlimited.\n" $rate) }}
{{- end }}
{{- if gt (len $digits) 19 }}
{{- fail (printf "\n\n'limit.rate' is '%s'. Its count has too many digits: write at most 18.\n" $rate) }}
{{- end }}
{{- if and (kindIs "invalid" .Values.limit.burst) (ge $count 4294967295.0) }}
{{- fail (printf "\n\n'limit.rate' is '%s', and without 'limit.burst' its count is the burst. Set 'limit.burst', to at most 4294967294.\n" $rate) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the schema cannot say. */}}
{{- define "gcra-spoa.validate" -}}
{{- $config := .Values.config | default "" }}
{{- $config = regexReplaceAll "^\\x{FEFF}" $config "" }}
{{- if not .Values.image.repository }}
{{- fail "\n\n'image.repository' is not set. There is no public image: build it (deploy/container), push it to a registry that your nodes reach, and name it there, as in registry.example/gcra-spoa.\n" }}
{{- end }}
{{- include "gcra-spoa.validateNames" . }}
{{- include "gcra-spoa.validateKeys" . }}
{{- include "gcra-spoa.validateRate" . }}
{{- with .Values.store.url }}
{{- if regexMatch "://[^@/]*:[^@/]*@" . }}
{{- fail "\n\n'store.url' has a password in it. Put the password into a Secret, and name that in 'store.existingSecret'.\n" }}
{{- end }}
{{- if not (regexMatch "^((redis|rediss|valkey|valkeys)([+](sentinel|cluster))?|unix)://." .) }}
{{- fail (printf "\n\n'store.url' is '%s'. Write an address such as redis://valkey.example:6379/0, or rediss:// for TLS.\n" .) }}
{{- end }}
{{- end }}
{{- if not (regexMatch "^([0-9.]+|[[][0-9a-f:]+[]])$" .Values.listenAddress) }}
{{- fail (printf "\n\n'listenAddress' is '%s'. Write an IP address without a port, such as 0.0.0.0, or [::] for IPv6.\n" .Values.listenAddress) }}
{{- end }}
{{- if not (regexMatch "^(sha256:[0-9a-f]{64})?$" .Values.image.digest) }}
{{- fail (printf "\n\n'image.digest' is '%s'. Write sha256: and 64 hexadecimal digits, or use 'image.tag'.\n" .Values.image.digest) }}
{{- end }}
{{- if not (regexMatch "^([0-9]+(Ki|Mi|Gi))?$" .Values.table.sizeLimit) }}
{{- fail (printf "\n\n'table.sizeLimit' is '%s'. Write a number and Ki, Mi or Gi, such as 256Mi.\n" .Values.table.sizeLimit) }}
{{- end }}
{{- /* As a header anywhere, or as a key before the first header. */}}
{{- $top := regexReplaceAll "(?ms)^[ \\t]*\\[.*" $config "" }}
{{- if or (regexMatch "(?m)^[ \\t]*\\[+[ \\t]*(store|\"store\"|'store')[ \\t]*[].]" $config) (regexMatch "(?m)^[ \\t]*(store|\"store\"|'store')[ \\t]*[.=]" $top) }}
{{- fail "\n\nThe file in 'config' has a section [store]. Remove it, and write its url in 'store.url', and its other lines in 'store.settings', so that pods restart when the store changes.\n" }}
{{- end }}
{{- if and $config (not (contains "policy" $config)) }}
{{- fail "\n\nThe file in 'config' has no policy. Write one, such as [policy.api] with limits = \"100/s burst 20\", or leave 'config' empty and use 'limit'.\n" }}
{{- end }}
{{- if and .Values.store.settings (not .Values.store.url) }}
{{- fail "\n\n'store.settings' is set, but 'store.url' is empty. Write the address of the store there.\n" }}
{{- end }}
{{- if and .Values.store.existingSecret (not .Values.store.url) }}
{{- fail "\n\n'store.existingSecret' is set, but 'store.url' is empty. Write the address of the store there.\n" }}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}
{{- if not .Values.allowSeparateLimits }}
{{- if not .Values.store.url }}
{{- fail (printf "\n\nWith %d replicas and no store, each pod has a limit of its own, and a client gets up to %d times the limit. Set 'store.url', or 'replicas' to 1, or, if that is meant, 'allowSeparateLimits' to true.\n" (int .Values.replicas) (int .Values.replicas)) }}
{{- end }}
{{- if and $config (not (regexMatch "(?m)^[^#\\n]*\\bshared[\"']?\\s*=\\s*true" $config)) }}
{{- fail (printf "\n\nWith %d replicas and no policy in 'config' that has 'shared = true', each pod has a limit of its own. Add that to the policies that pods share, or, if it is meant, set 'allowSeparateLimits' to true.\n" (int .Values.replicas)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $last := add (int .Values.agentsPerPod) -1 }}
{{- $port := int .Values.service.port }}
{{- $admin := int .Values.service.adminPort }}
{{- if and (le $port (add $admin $last)) (le $admin (add $port $last)) }}
{{- fail (printf "\n\nThe ports of the agents, %d to %d, and of their metrics, %d to %d, overlap. Change 'service.port' or 'service.adminPort'.\n" $port (add $port $last) $admin (add $admin $last)) }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.haproxy) }}
{{- fail "\n\n'networkPolicy.enabled' is true, but 'networkPolicy.haproxy' is empty, so HAProxy could not connect. Write there which pods may.\n" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.store.url (not .Values.networkPolicy.store) }}
{{- fail "\n\n'networkPolicy.enabled' is true, but 'networkPolicy.store' is empty, so agents could not reach the store. Write there where it is.\n" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.serviceMonitor.enabled (not .Values.networkPolicy.prometheus) }}
{{- fail "\n\n'networkPolicy.enabled' and 'serviceMonitor.enabled' are true, but 'networkPolicy.prometheus' is empty, so Prometheus could not connect. Write there which pods may.\n" }}
{{- end }}
{{- end }}
