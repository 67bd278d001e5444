-- The first part of both scripts: opening the record of a bucket, and keeping it. ask.lua or
-- charge.lua stands below. The types Record and Records of the crate gcra-lease say the same in
-- Rust, and a test compares the two; the reasons are there.
--
-- * KEYS[1]: the records of the bucket.
-- * KEYS[2], if the store is strict: the epoch.
-- * ARGV[1]: the numbers, and the ask or charge.
-- * ARGV[2]: the shortest time for which the records are kept, in ms.
-- * ARGV[3]: how many µs ago the limit got these numbers, and the most units that are owed because
--   of others.
-- * ARGV[4]: 1 if the store is strict, else 0.
--
-- Each of the numbers under which something is owed has a record. It is these numbers, as ARGV[1]
-- has them, the number of leases, a header, and a lease for each host. The record that was used
-- last comes first. Times are in whole µs. Debts are in units, of which `scale` (a power of two)
-- are one µs. All of them stay below 2^53, so doubles are exact. Lua's own text of a number has
-- only 14 digits, so none is made.
--
-- For a count in a window, `scale` is 0, so nothing drains, and `cell` is 1. Its name has the
-- window in it, so there is one record, whatever the count is.

local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]

-- Advances a record to now. Returns the debt, the soonest expiry (or a time before it), the cells
-- of all leases, and until when a denial is noted and whose it is. Then it returns the leases, and
-- when the record was last used before or the last lease expired.
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
    return owed, soonest, lent, noted, noted_host, leases, at
end

-- The numbers of this call; the other records, as they are kept, and for how many ms.
local numbers, others, others_ms = string.sub(ARGV[1], 1, 28), '', 0
-- The debt under these numbers, and the least debt because of other numbers: without the cells
-- that are lent under them, and with these cells.
local own_owed, carried, carried_with_lent = 0, 0, 0

-- A record as it is kept.
local function written(under, owed, soonest, lent, noted, noted_host, leases)
    return under .. struct.pack('<I4dddI4dc8', #leases / 28, now, owed, soonest, lent, noted,
        noted_host) .. leases
end

-- Calls `found` with the numbers of each record, and the record without them.
local function each_record(records, found)
    local i = 1
    while i < #records do
        local last = i + 75 + 28 * struct.unpack('<I4', records, i + 28)
        found(string.sub(records, i, i + 27), string.sub(records, i + 32, last))
        i = last + 1
    end
end

-- Returns the bucket under these numbers, with the debts under others. If the store is strict and
-- does not know the bucket, `supposed` may have been owed at the epoch, or before the window began
-- at `begin` (in s since 1970).
local function open(burst, ceiling, cell, scale, longest, supposed, begin)
    local ago, most = struct.unpack('<dd', ARGV[3])
    local is_strict = ARGV[4] == '1'
    local kept, own, count = redis.call('GET', KEYS[1]), nil, 1

    local function carries(all, cell_before, scale_before)
        local to_pay = math.ceil(all / cell_before * cell)
        local then_to_pay = math.ceil((all + ago * scale_before) / cell_before * cell)
        return math.min(to_pay, math.min(then_to_pay, most) - ago * scale)
    end

    local function other(under, record)
        local b, top, c, s, l = struct.unpack('<I4I4ddI4', under)
        local owed, soonest, lent, noted, noted_host, leases = settle(record, b, top, c, s, l)
        local all = owed + lent * c
        carried = math.max(carried, carries(owed, c, s))
        carried_with_lent = math.max(carried_with_lent, carries(all, c, s))
        if (owed > 0 or #leases > 0) and count < 64 then
            count = count + 1
            others = others .. written(under, owed, soonest, lent, noted, noted_host, leases)
            others_ms = math.max(others_ms, math.ceil((math.ceil(all / s) + l) / 1000) + 10000)
        end
    end

    if kept then
        each_record(kept, function(under, record)
            if scale == 0 or under == numbers then
                own = record
            else
                other(under, record)
            end
        end)
    end

    local soonest, lent, noted, noted_host, leases = math.huge, 0, 0, string.rep('\0', 8), ''
    local last_used = now
    if own then
        own_owed, soonest, lent, noted, noted_host, leases, last_used =
            settle(own, burst, ceiling, cell, scale, longest)
    elseif is_strict and not kept then
        local epoch = redis.call('GET', KEYS[2])
        epoch = epoch and struct.unpack('<d', epoch)
        -- An epoch in the future: the clock went back, and what was before may be lost as well.
        if not epoch or epoch > now then
            epoch = now
            redis.call('SET', KEYS[2], struct.pack('<d', epoch))
        end
        if scale > 0 then
            own_owed = math.max(supposed - (now - epoch) * scale, 0)
        elseif begin * 1000000 < epoch then
            own_owed = supposed
        end
    end
    return math.max(own_owed, carried), soonest, lent, noted, noted_host, leases, last_used
end

-- The units that count besides the debt, because cells are lent under other numbers.
local function lent_by_others()
    return math.max(carried_with_lent - math.max(own_owed, carried), 0)
end

-- Keeps the records for so many ms, and until all is drained that requests wait for, and 10 s. A
-- debt because of other records is written down only if cells were charged or granted.
local function keep(ms, scale, owed, soonest, lent, noted, noted_host, leases, granted)
    if owed == math.max(own_owed, carried) and granted == 0 then
        owed = own_owed
    end
    if scale > 0 then
        ms = math.max(ms, math.ceil(math.ceil(owed / scale) / 1000) + 10000)
    end
    local own = written(numbers, owed, soonest, lent, noted, noted_host, leases)
    redis.call('SET', KEYS[1], own .. others, 'PX',
        string.format('%.0f', math.max(ms, others_ms)))
end

