-- One charge to one bucket, made at once.
--
-- ARGV[1] has in it, behind the numbers:
--
-- * the number of the charge;
-- * 0 to take, 1 to charge more, and 2 to give back;
-- * how many cells;
-- * how many cells a request needs;
-- * the units that drain while it waits;
-- * when the window of a count begins, and when it ends, in s since 1970;
-- * when the cells were taken that a denied request gives back, or 0.
--
-- Answers with the values that script.rs reads.

local burst, ceiling, cell, scale, longest, number, kind, cells, needs, drains, begin, ends,
    taken_at = struct.unpack('<I4I4ddI4dBI4I4dddd', ARGV[1])
local supposed = burst * cell + math.max(longest * scale, drains)
local owed, soonest, lent, noted, noted_host, leases, last_used =
    open(burst, ceiling, cell, scale, longest, supposed, begin)

local allowed, charged, beyond = true, 0, 0
if kind == 0 then
    needs = math.max(cells, needs)
    -- Lent cells do not drain while the request waits.
    local all_lent = lent * cell + lent_by_others()
    local most = burst * cell + (all_lent == 0 and drains or 0)
    allowed = needs == 0 or (needs <= burst and owed + all_lent + needs * cell <= most)
    if allowed then
        charged = cells
        owed = owed + cells * cell
    end
elseif kind == 1 then
    charged = math.min(cells, math.floor(math.max(ceiling * cell - owed, 0) / cell))
    owed = owed + charged * cell
    beyond = math.min(math.ceil(math.max(owed - burst * cell, 0) / cell), charged)
else
    -- Cells that were charged under other numbers are not given back here. The number of cells
    -- that a full window could not hold is not known.
    local before, back = own_owed, cells * cell
    if taken_at > 0 and scale > 0 then
        back = last_used < taken_at and 0 or math.max(back - (last_used - taken_at) * scale, 0)
    end
    if scale > 0 or own_owed < 4294967295 * cell then
        own_owed = math.max(own_owed - back, 0)
    end
    charged = math.floor((before - own_owed) / cell)
    owed = math.max(own_owed, carried)
end

local ms = tonumber(ARGV[2])
if scale == 0 then
    -- From the end of the window, by the clock of the store.
    ms = ms + math.ceil(math.max(ends * 1000000 - now, 0) / 1000)
end
keep(ms, scale, owed, soonest, lent, noted, noted_host, leases, 0)
return struct.pack('<dBI4I4dd', number, allowed and 1 or 0, charged, beyond,
    owed + lent * cell + lent_by_others(), now)
