-- One ask for one bucket. If the key owed a full burst `owed_ago`, the last of KEYS has when an
-- operator last cleared the bucket.
--
-- Answers with nothing if the ask is ignored, and otherwise with the values that script.rs reads.

local burst, ceiling, cell, scale, longest, host, number, fresh, spent, debt, holds, want,
    least, validity, owed_ago = struct.unpack('<I4I4ddI4c8dBI4I4I4I4I4I4d', ARGV[1])
-- The most that is owed, and the most without penalties.
local most, full = ceiling * cell + longest * scale, burst * cell + longest * scale
local owed, soonest, lent, noted, noted_host, leases =
    open(burst, ceiling, cell, scale, longest, full)

-- The lease of this host.
local place = string.find(leases, host, 1, true)
while place and (place - 1) % 28 ~= 0 do
    place = string.find(leases, host, place + 1, true)
end
local own, own_expiry, last = 0, 0, -1
if place then
    own, own_expiry, last = struct.unpack('<I4dd', leases, place + 8)
end

local reply, granted = '', 0
if number > last then
    local kept = 0
    if fresh == 1 then
        spent = own
    else
        kept = math.min(holds, own)
        spent = math.min(spent, own - kept)
    end
    -- More than the most is owed where requests wait.
    owed = math.max(owed, math.min(owed + spent * cell, most))
    owed = math.max(owed, math.min(owed + debt * cell, most))
    local owes = burst * cell - owed_ago * scale
    if owes > owed then
        local reset = redis.call('GET', KEYS[#KEYS])
        reset = reset and struct.unpack('<d', reset) or 0
        -- One from the future: the clock went back.
        if reset < now - owed_ago or reset > now then
            owed = owes
        end
    end

    lent = lent - own + kept
    local taken = owed + lent * cell + lent_by_others()
    local free = math.floor(math.max(burst * cell - taken, 0) / cell)
    local scarce = noted > 0 and noted_host ~= host
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
    local is_lent = granted < least and owed + (kept + least) * cell <= burst * cell
    reply = struct.pack('<dI4I4I4I4I4BBd', number, kept, granted, free - granted, wait, hosts,
        scarce and 1 or 0, is_lent and 1 or 0, now)
end

keep(tonumber(ARGV[2]), scale, owed, soonest, lent, noted, noted_host, leases, granted)
return reply
