-- The orders that machines share. Puts those of a machine to the ones that are kept.
--
-- * KEYS[1]: a version, which grows with each change, and the orders.
-- * ARGV[1]: the version that the machine knows; 0 if it knows none.
-- * ARGV[2]: the orders of the machine.
-- * ARGV[3]: the most orders that are kept, without ends.
-- * ARGV[4]: the most ends that are kept. Beyond it, those are left out that go first.
-- * ARGV[5]: the most bytes of a list. A longer value is not read, because all wait meanwhile.
--
-- An order is its id, 1 if it is the end of an order (else 0), when it was given and when it goes
-- (in ms since 1970), and its words. Of two with the same id, the one that was given later is
-- kept. The version is a time in µs, so that a server that has lost its memory makes no version
-- that was there before.
--
-- Answers with the version, the time in ms, and all orders if the machine knows another version.

local length = redis.call('STRLEN', KEYS[1])
if length > tonumber(ARGV[5]) then
    return redis.error_reply('TOOLONG ' .. length)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = redis.call('GET', KEYS[1]) or ''
local version = 0
if kept ~= '' then
    version = struct.unpack('<d', kept)
    kept = string.sub(kept, 9)
end

if ARGV[2] ~= '' then
    local all, ids, orders = {}, {}, 0
    local function put(bytes)
        local at = 1
        while at <= #bytes do
            local begin = at
            local id, is_end, given, ends, words
            id, is_end, given, ends, words, at = struct.unpack('<c16BddI2c0', bytes, at)
            local other = all[id]
            local more = 1 - is_end - (other and 1 - other.is_end or 0)
            if ends > now and (not other or given > other.given)
                    and (more < 1 or orders < tonumber(ARGV[3])) then
                if not other then ids[#ids + 1] = id end
                orders = orders + more
                all[id] = { is_end = is_end, given = given, ends = ends,
                    bytes = string.sub(bytes, begin, at - 1) }
            end
        end
    end
    put(kept)
    put(ARGV[2])
    local by_end = {}
    for _, id in ipairs(ids) do
        if all[id].is_end == 1 then by_end[#by_end + 1] = id end
    end
    table.sort(by_end, function(one, other) return all[one].ends > all[other].ends end)
    for place = tonumber(ARGV[4]) + 1, #by_end do all[by_end[place]] = nil end
    local last, parts = now, {}
    for _, id in ipairs(ids) do
        if all[id] then
            parts[#parts + 1] = all[id].bytes
            last = math.max(last, all[id].ends)
        end
    end
    local merged = table.concat(parts)
    if merged ~= kept and last > now then
        kept = merged
        version = math.max(time[1] * 1000000 + time[2], version + 1)
        redis.call('SET', KEYS[1], struct.pack('<d', version) .. kept, 'PX',
            string.format('%.0f', last - now))
    end
end

local known = struct.unpack('<d', ARGV[1])
return struct.pack('<dd', version, now) .. (version == known and '' or kept)
