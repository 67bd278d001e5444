-- One ask for one bucket. The type Record of the crate gcra-lease says the same in Rust, and a
-- test compares the two; the reasons are there.
--
-- KEYS  1: the record of the bucket. Then, if ARGV[3] is not empty, its record under the earlier
--       numbers; and then, if the store is strict, the epoch.
-- ARGV  1: the numbers and the ask. 2: how many ms the record is kept. 3: the earlier numbers.
-- Answers with nothing if the ask is ignored, and otherwise with what script.rs reads.
--
-- A record is a header and a lease for each host. Times are in whole µs, and what is owed is in
-- units, of which `scale` (a power of two) are one µs. All of them stay below 2^53, so doubles are
-- exact. Numbers are never made text, because that keeps only 14 digits.

local burst, ceiling, cell, scale, longest, host, number, fresh, spent, debt, owes, holds, want,
    least, validity = struct.unpack('<I4I4ddI4c8dBI4I4I4I4I4I4I4', ARGV[1])
-- The most that is owed, and the most without penalties.
local most, full = ceiling * cell + longest * scale, burst * cell + longest * scale
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]

-- Advances a record to now. Returns what is owed, the soonest expiry (or a time before it), the
-- cells of all leases, until when a denial is noted and whose it is, and the leases.
local function settle(record, cell, scale, longest, most, full)
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
            owed = math.min(owed + lease[1] * cell, most)
        end
    end
    owed = math.max(owed - (now - at) * scale, 0)
    if noted <= now then
        noted = 0
    end
    return owed, soonest, lent, noted, noted_host, leases
end

local owed, soonest, lent, noted, noted_host, leases = 0, math.huge, 0, 0, string.rep('\0', 8), ''
local earlier = ARGV[3] ~= ''
local epoch_key = KEYS[earlier and 3 or 2]
local record = redis.call('GET', KEYS[1])
local before = not record and earlier and redis.call('GET', KEYS[2])
if record then
    owed, soonest, lent, noted, noted_host, leases = settle(record, cell, scale, longest, most, full)
elseif before then
    local b, top, c, s, l = struct.unpack('<I4I4ddI4', ARGV[3])
    local was, _, cells = settle(before, c, s, l, top * c + l * s, b * c + l * s)
    owed = math.min(math.ceil((was + cells * c) / c), ceiling) * cell
elseif epoch_key then
    local epoch = redis.call('GET', epoch_key)
    epoch = epoch and struct.unpack('<d', epoch)
    -- An epoch in the future: the clock went back, and what was before may be lost as well.
    if not epoch or epoch > now then
        epoch = now
        redis.call('SET', epoch_key, struct.pack('<d', epoch))
    end
    owed = math.max(full - (now - epoch) * scale, 0)
end

-- The lease of this host.
local place = string.find(leases, host, 1, true)
while place and (place - 1) % 28 ~= 0 do
    place = string.find(leases, host, place + 1, true)
end
local own, own_expiry, last = 0, 0, -1
if place then
    own, own_expiry, last = struct.unpack('<I4dd', leases, place + 8)
end

local reply = ''
if number > last then
    local kept = 0
    if fresh == 1 then
        spent = own
    else
        kept = math.min(holds, own)
        spent = math.min(spent, own - kept)
    end
    owed = math.min(owed + spent * cell, most)
    owed = math.min(owed + debt * cell, most)
    owed = math.max(owed, math.min(owes, burst) * cell)

    lent = lent - own + kept
    local taken = owed + lent * cell
    local free = math.floor(math.max(burst * cell - taken, 0) / cell)
    local scarce = noted > 0 and noted_host ~= host
    local granted = 0
    if free >= least then
        granted = math.min(want, math.max(scarce and 0 or math.ceil(free / 2), least))
    end

    validity = math.min(validity, longest)
    local expiry = now + validity
    if kept > 0 then
        expiry = math.max(expiry, own_expiry)
    end
    lent = lent + granted
    soonest = math.min(soonest, expiry)
    local lease = struct.pack('<c8I4dd', host, kept + granted, expiry, number)
    if place then
        lease = string.sub(leases, 1, place - 1) .. lease .. string.sub(leases, place + 28)
        leases = lease
    else
        leases = leases .. lease
    end

    local hosts, wait = #leases / 28, 0
    local slow = cell > 49999 * scale
    local more = free - granted >= math.max(least, 1) and (hosts == 1 or slow)
    if granted < want and not more then
        local lack = math.max(least * cell + taken - burst * cell, 0)
        local fair = math.max(math.floor(math.floor(burst / 4) / hosts), 1)
        local half = slow and 0 or math.floor(fair * hosts * cell / 2)
        wait = math.min(math.ceil(math.max(lack, half) / scale), 60000000)
        if wait > soonest - now then
            for i = 1, #leases, 28 do
                local id, cells, its_expiry = struct.unpack('<c8I4d', leases, i)
                if id ~= host and cells > 0 then
                    wait = math.min(wait, its_expiry - now)
                end
            end
        end
    end
    if granted < least then
        if least > 1 and not scarce then
            noted, noted_host = now + wait + validity, host
        end
    elseif not scarce then
        noted = 0
    end
    reply = struct.pack('<dI4I4I4I4I4Bd', number, kept, granted, free - granted, wait, hosts,
        scarce and 1 or 0, now)
end

record = struct.pack('<dddI4dc8', now, owed, soonest, lent, noted, noted_host) .. leases
redis.call('SET', KEYS[1], record, 'PX', ARGV[2])
return reply
