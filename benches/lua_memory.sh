#!/bin/sh
# lua_memory.sh [HAPROXY...]: the memory of HAProxy and of its Lua states before and after a
# million requests. The module decides about all, and half come from one client that is blocked.
# The script prints the figures, with the installed HAProxy if none is named. It needs wrk, curl
# and the module, which `cargo build --release -p gcra-lua` builds.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
module=$(realpath "$target/release/libgcra_lua.so")
work=$(mktemp -d)
haproxy=
trap '[ -z "$haproxy" ] || kill "$haproxy"; rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
ln -s "$module" "$work/gcra_lua.so"
port=$((20000 + $$ % 10000))
[ $# -ne 0 ] || set -- haproxy

cat >"$work/memory.lua" <<'END'
core.register_service("memory", "http", function(applet)
    local body = string.format("%d", math.floor(collectgarbage("count")))
    applet:set_status(200)
    applet:add_header("content-length", tostring(#body))
    applet:add_header("connection", "close")
    applet:start_response()
    applet:send(body)
end)
END
cat >"$work/clients.lua" <<'END'
local number = 0
request = function()
    number = number + 1
    local client = number % 2 == 0 and "10.0.0.1" or "11." .. number // 65536 % 256 .. "." ..
        number // 256 % 256 .. "." .. number % 256
    return "GET / HTTP/1.1\r\nHost: a\r\nX-Client: " .. client .. "\r\n\r\n"
end
done = function(summary) io.write("requests " .. summary.requests .. "\n") end
END
# wrk has an older Lua.
sed -i 's|number // \([0-9]*\)|math.floor(number / \1)|g' "$work/clients.lua"

for program; do
    words="--table $work/table-$port --rate 100/s --burst 20 --slots 4194304"
    cat >"$work/haproxy.cfg" <<END
global
    nbthread 2
.if version_atleast(3.1-dev0)
    tune.lua.bool-sample-conversion normal
.endif
    lua-prepend-path $work/?.so cpath
.if version_atleast(2.8-dev0)
    lua-load-per-thread $PWD/crates/gcra-lua/gcra.lua $words
.else
    setenv GCRA_LUA "$words"
    lua-load-per-thread $PWD/crates/gcra-lua/gcra.lua
.endif
    lua-load-per-thread $work/memory.lua
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend web
    bind 127.0.0.1:$port
    http-request use-service lua.memory if { path /memory }
    http-request deny status 429 if { req.hdr_ip(x-client),lua.gcra -m int gt 0 }
    http-request return status 200
END
    "$program" -db -f "$work/haproxy.cfg" >"$work/log" 2>&1 &
    haproxy=$!
    until grep -q 'gcra: table ' "$work/log"; do
        kill -0 "$haproxy" || { cat "$work/log" >&2; exit 1; }
        sleep 0.2
    done
    # The largest of some answers, of any thread.
    lua() {
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
            curl -s "http://127.0.0.1:$port/memory"
            echo
        done | sort -n | tail -n 1
    }
    # Without the table, which is shared.
    resident() { awk '/^RssAnon/ { print $2 }' "/proc/$haproxy/status"; }
    load() { wrk -t1 -c32 -d2 -s "$work/clients.lua" "http://127.0.0.1:$port/" |
        sed -n 's/^requests //p'; }
    load >/dev/null
    "$program" -v | head -n 1
    echo "before: a Lua state has $(lua) KB, HAProxy $(resident) KB"
    requests=0 most=0
    while [ $requests -lt 1000000 ]; do
        requests=$((requests + $(load)))
        now=$(lua)
        [ "$now" -le $most ] || most=$now
    done
    echo "after $requests requests: $(lua) KB, at most $most KB, HAProxy $(resident) KB"
    kill "$haproxy"
    wait "$haproxy" 2>/dev/null || :
    haproxy=
    port=$((port + 1))
done
