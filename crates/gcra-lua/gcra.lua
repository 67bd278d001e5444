-- The limiter of gcra-spoa inside HAProxy: docs/guides/inside-haproxy.md.
--
--     lua-load-per-thread /usr/share/gcra-spoa/gcra.lua --table PATH --config FILE
--
-- HAProxy 2.6 passes no words to the file: write them into the variable GCRA_LUA.
local gcra = require("gcra_lua")

local words = { ... }
if #words == 0 then
    for word in (os.getenv("GCRA_LUA") or ""):gmatch("%S+") do
        words[#words + 1] = word
    end
end
local ready, mistake = gcra.prepare(table.concat(words, "\0"))
if not ready then
    error("gcra.lua: " .. mistake, 0)
end

-- Each request leaves a coroutine behind. Lua 5.3 has no such collector, so it collects less often.
if not pcall(collectgarbage, "generational") then
    collectgarbage("setpause", 400)
end

-- src,lua.gcra(api): the wait in milliseconds.
core.register_converters("gcra", gcra.wait)
-- src,hex,lua.gcra_ip(api): the same for an address, which takes HAProxy less time to write.
core.register_converters("gcra_ip", gcra.wait_of_address)
-- src,lua.gcra_answer(api): the same wait, and behind it the other variables: 0|api|19.
core.register_converters("gcra_answer", gcra.fields)

-- http-request use-service lua.gcra_metrics: what an agent tells about itself with --admin.
core.register_service("gcra_metrics", "http", function(applet)
    local host = applet.headers["host"]
    local status, kind, body =
        gcra.about(applet.method, host and host[0] or "", applet.path, applet.qs or "")
    body = body or "HAProxy could not answer; its log says why\n"
    applet:set_status(tonumber(status) or 500)
    applet:add_header("content-type", kind or "text/plain")
    applet:add_header("content-length", tostring(#body))
    applet:add_header("cache-control", "no-store")
    applet:add_header("x-content-type-options", "nosniff")
    applet:start_response()
    applet:send(body)
end)

local levels = { error = core.err, warn = core.warning, info = core.info }

local function write(level, line, ...)
    if level then
        core.log(levels[level] or core.info, "gcra: " .. line)
        return write(...)
    end
end

-- One of the threads does what is to be done once a second.
if core.thread <= 1 then
    core.register_task(function()
        while true do
            write(gcra.tend())
            core.msleep(1000)
        end
    end)
end
