#!/bin/sh
# replay.sh [REQUESTS [ROUNDS]] | --quick: `gcra-spoa replay` beside awk and GoAccess on the same
# log, each as a whole program: processor time and time in all, as medians of interleaved rounds.
# awk only counts the requests of each client. A program that is not installed is left out, and the
# output says so. --quick only tries it out, with the programs that the tests are made of.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
if [ "${1:-}" = --quick ]; then
    requests=5000
    rounds=1
    built=$target/debug
    "${CARGO:-cargo}" build --locked --quiet --workspace --bin gcra-spoa --example generate
else
    requests=${1:-1000000}
    rounds=${2:-5}
    built=$target/release
    "${CARGO:-cargo}" build --release --locked --quiet --bin gcra-spoa
    "${CARGO:-cargo}" build --release --locked --quiet -p haproxy-log --example generate
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
log=$work/haproxy.log
"$built/examples/generate" --requests "$requests" --seed 1 --format http \
    --log "$log" --truth "$work/truth" >/dev/null
echo "$requests requests, $(wc -c <"$log") bytes, $rounds rounds, $(nproc) cores"

count='{ split($1, a, ":"); n[a[1]]++ } END { for (k in n) c++; print c }'
# %h is the client's address, and the parts of the HTTP format after its date are skipped.
goaccess_format='%h:%^ [%d:%t.%^] %^ %^/%^ %^/%^/%^/%^/%L %s %b %^ %^ %^ %^ %^ "%r"'
run() {
    case $1 in
    replay) "$built/gcra-spoa" replay --rate 10/s --burst 20 "$log" ;;
    suggest) "$built/gcra-spoa" replay --suggest key=ip "$log" ;;
    mawk | gawk) "$1" "$count" "$log" ;;
    goaccess)
        goaccess --no-global-config --log-format="$goaccess_format" --date-format=%d/%b/%Y \
            --time-format=%T -o "$work/report.json" "$log"
        ;;
    esac
}
tools="replay suggest"
for tool in mawk gawk goaccess; do
    if command -v "$tool" >/dev/null; then
        tools="$tools $tool"
    else
        echo "$tool is not installed and left out"
    fi
done
for round in $(seq "$rounds"); do
    for tool in $tools; do
        # `times` of a shell of its own has the time of the commands that it ran; a rest of a
        # second is cut.
        began=$(date +%s%N)
        (
            run "$tool" >"$work/out" 2>"$work/err" || {
                echo "$tool failed:" >&2
                cat "$work/err" >&2
                exit 1
            }
            times >"$work/times"
        )
        ended=$(date +%s%N)
        awk -v tool="$tool" -v wall="$(((ended - began) / 1000000))" '
            function seconds(text) { split(text, part, "[ms]"); return part[1] * 60 + part[2] }
            NR == 2 { print tool, seconds($1) + seconds($2), wall / 1000 }' "$work/times"
    done
done >"$work/figures"
echo "                processor   in all   requests/s"
for tool in $tools; do
    for column in 2 3; do
        awk -v tool="$tool" -v column="$column" '$1 == tool { print $column }' "$work/figures" |
            sort -n | awk '{ n[NR] = $1 } END { print n[int((NR + 1) / 2)] }'
    done | paste -s -d' ' | awk -v tool="$tool" -v requests="$requests" \
        '{ printf "%-14s %8.2f s %6.2f s %12d\n", tool, $1, $2, requests / ($2 > 0 ? $2 : 0.01) }'
done
