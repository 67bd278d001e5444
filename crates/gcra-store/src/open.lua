-- What both scripts begin with: opening the record of a bucket, and keeping it. ask.lua or
-- charge.lua stands below. The type Record of the crate gcra-lease says the same in Rust, and a
-- test compares the two; the reasons are there.
--
-- KEYS  1: the record of the bucket. Then, if ARGV[3] is not empty, its record under the earlier
--       numbers; and then, if the store is strict, the epoch.
-- ARGV  1: the numbers, and the ask or charge. 2: how many ms the record is kept, at least.
--       3: the earlier numbers.
--
-- A record is a header and a lease for each host. Times are in whole µs, and what is owed is in
-- units, of which `scale` (a power of two) are one µs. All of them stay below 2^53, so doubles are
-- exact. Lua's own text of a number has only 14 digits, so none is made.
--
-- For a count in a window, `scale` is 0, so nothing drains, and `cell` is 1.

local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]

-- Advances a record to now. Returns what is owed, the soonest expiry (or a time before it), the
-- cells of all leases, until when a denial is noted and whose it is, and the leases.
local function settle(record, burst, ceiling, cell, scale, longest)
    -- The most that is owed, and the most without penalties.
    local most, full = ceiling * cell + longest * scale, burst * cell + longest * scale
    local at, owed, soonest, lent, noted, noted_host = struct.unpack('<dddI4dc8', record)
    local leases = string.sub(record, 45)
    if now < at then -- The clock went back.
        if owed > 0 then
            owed = math.max(owed, math.min(owed + (at - now) * scale, full))
        end
        at = now
        noted = 0
        local latest, cut = now + longest, {}
        for i = 1, #leases, 28 do
            local id, cells, expiry, last = struct.unpack('<c8I4dd', leases, i)
            expiry = math.min(expiry, latest)
            cut[#cut + 1] = struct.pack('<c8I4dd', id, cells, expiry, last)
        end
        leases = table.concat(cut)
        soonest = math.min(soonest, latest)
    end
    if soonest <= now then
        local expired, left = {}, {}
        soonest = math.huge
        for i = 1, #leases, 28 do
            local cells, expiry = struct.unpack('<I4d', leases, i + 8)
            if expiry <= now then
                expired[#expired + 1] = { cells, expiry }
                lent = lent - cells
            else
                left[#left + 1] = string.sub(leases, i, i + 27)
                soonest = math.min(soonest, expiry)
            end
        end
        leases = table.concat(left)
        table.sort(expired, function(one, other) return one[2] < other[2] end)
        for _, lease in ipairs(expired) do
            if lease[2] > at then
                owed = math.max(owed - (lease[2] - at) * scale, 0)
                at = lease[2]
            end
            owed = math.max(owed, math.min(owed + lease[1] * cell, most))
        end
    end
    owed = math.max(owed - (now - at) * scale, 0)
    if noted <= now then
        noted = 0
    end
    return owed, soonest, lent, noted, noted_host, leases
end

-- What there is of the bucket: its record, what its record under the earlier numbers says, or
-- nothing. In a strict store that does not know it, `supposed` may have been owed at the epoch, or
-- before the window began at `begin` (in s since 1970).
local function open(burst, ceiling, cell, scale, longest, supposed, begin)
    local owed, none = 0, string.rep('\0', 8)
    local earlier = ARGV[3] ~= ''
    local epoch_key = KEYS[earlier and 3 or 2]
    local record = redis.call('GET', KEYS[1])
    if record then
        return settle(record, burst, ceiling, cell, scale, longest)
    end
    local before = earlier and redis.call('GET', KEYS[2])
    if before then
        local b, top, c, s, l = struct.unpack('<I4I4ddI4', ARGV[3])
        local was, _, cells = settle(before, b, top, c, s, l)
        owed = math.min(math.ceil((was + cells * c) / c), ceiling) * cell
    elseif epoch_key then
        local epoch = redis.call('GET', epoch_key)
        epoch = epoch and struct.unpack('<d', epoch)
        -- An epoch in the future: the clock went back, and what was before may be lost as well.
        if not epoch or epoch > now then
            epoch = now
            redis.call('SET', epoch_key, struct.pack('<d', epoch))
        end
        if scale > 0 then
            owed = math.max(supposed - (now - epoch) * scale, 0)
        elseif begin * 1000000 < epoch then
            owed = supposed
        end
    end
    return owed, math.huge, 0, 0, none, ''
end

-- Keeps the record for so many ms, and until all is drained that requests wait for, and 10 s.
local function keep(ms, scale, owed, soonest, lent, noted, noted_host, leases)
    if scale > 0 then
        ms = math.max(ms, math.ceil(math.ceil(owed / scale) / 1000) + 10000)
    end
    local record = struct.pack('<dddI4dc8', now, owed, soonest, lent, noted, noted_host) .. leases
    redis.call('SET', KEYS[1], record, 'PX', string.format('%.0f', ms))
end

