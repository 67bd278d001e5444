-- Drives the module as HAProxy's Lua does, with values that clients may send and with others that
-- they cannot. `tests/memcheck` runs it with each version of Lua. The arguments are a folder for
-- the table, and how many values there are.
local gcra = require("gcra_lua")
local folder = arg[1]

local file = folder .. "/policies.toml"
local policies = io.open(file, "w")
policies:write([[
answer = ["policy", "reason", "limit", "remaining", "retry_after", "ratelimit", "headers"]
[policy.api]
limits = "100/s burst 20"
key = ["ip"]
[policy.path]
limits = ["90/d burst 9", "60/d burst 6"]
key = ["ip", "path"]
cost = "n"
]])
policies:close()

-- Wrong words are refused with a sentence.
for _, words in ipairs({ "", "--rate", "\0\0", "--table\0x\0--rate\0" .. "9/d", "\255\254" }) do
    local ready, mistake = gcra.prepare(words)
    assert(not ready and type(mistake) == "string")
end
local words = { "--table", folder .. "/table", "--config", file, "--slots", "4096" }
assert(gcra.wait("192.0.2.1", "api") == -1, "nothing is decided yet")
assert(gcra.prepare(table.concat(words, "\0")))
assert(gcra.prepare(table.concat(words, "\0")), "each state loads it")
assert(not gcra.prepare("--rate\0" .. "9/d"))
local first = gcra.tend()
assert(type(first) == "string")
gcra.tend()

-- The first argument of each call may be of any type.
local calls = { gcra.prepare, gcra.tend, gcra.wait, gcra.wait_of_address, gcra.fields,
    gcra.about }
local values = { false, 7, 7.5, {}, print, coroutine.create(print) }
for _, call in ipairs(calls) do
    call()
    call(nil)
    for _, value in ipairs(values) do
        call(value)
        call("a", value, "c")
    end
    local many = {}
    for number = 1, 60 do
        many[number] = "word" .. number
        call(table.unpack(many))
    end
end

-- A collection may call the module while it returns its results.
local function collected()
    setmetatable({}, { __gc = function()
        gcra.wait("192.0.2.9", "api")
        gcra.fields("192.0.2.9", "api")
    end })
end

local function random(length)
    local bytes = {}
    for number = 1, length do
        bytes[number] = string.char(math.random(0, 255))
    end
    return table.concat(bytes)
end

local counts = {}
local function check(wait)
    assert(math.type(wait) == "integer" and wait >= -1 and wait <= 2147483647)
    local kind = wait > 0 and "blocked" or wait == 0 and "allowed" or "undecided"
    counts[kind] = (counts[kind] or 0) + 1
end

local types = { "", ":str", ":int", ":bool", ":hex", ":strhex", ":none", ":" }
math.randomseed(7)
for number = 1, tonumber(arg[2]) do
    local length = number % 500 == 0 and math.random(0, 70000) or math.random(0, 60)
    local value = random(length)
    local kind = types[number % #types + 1]
    check(gcra.wait(value, "api"))
    check(gcra.wait_of_address(value, "api", number % 2 == 0 and "ip" or nil))
    check(gcra.wait_of_address(string.format("C00002%02X", number % 9), "api"))
    check(gcra.wait(value, "path", "n:int", "ip", "path" .. kind))
    check(gcra.wait(math.random(-2, 9) .. "|192.0.2.1|" .. value, "path", "n:int", "ip", "path"))
    check(gcra.wait("192.0.2." .. number % 9, "api", "ip" .. kind))
    gcra.fields("1|192.0.2.1|" .. value, "path", "n:int", "ip", "path" .. kind)
    assert(gcra.fields("192.0.2." .. number % 9, "api"):find("|", 1, true))
    gcra.fields(value, value, value, value)
    gcra.about(value, value, value, value)
    gcra.about("GET", "", value, value)
    collected()
    if number % 100 == 0 then
        gcra.tend()
        local _, _, body = gcra.about("GET", "", "/metrics", "")
        assert(body:find("gcra_decisions_total", 1, true))
        collectgarbage()
    end
end
local status, _, metrics = gcra.about("GET", "localhost", "/metrics", "")
assert(status == "200")
assert(metrics:find("gcra_handler_panics_total 0\n", 1, true), "nothing has panicked")
assert(counts.allowed and counts.blocked and counts.undecided)

-- In a coroutine, as HAProxy calls it.
for _ = 1, 1000 do
    local thread = coroutine.wrap(function() return gcra.wait("192.0.2.1", "api") end)
    check(thread())
end
print(_VERSION .. ": " .. counts.allowed .. " allowed, " .. counts.blocked .. " blocked, "
    .. counts.undecided .. " undecided, " .. collectgarbage("count") // 1 .. " KB")
