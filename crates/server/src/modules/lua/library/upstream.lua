-- `ngx.upstream`: lua-upstream-nginx-module's functions.
local tools = ...
local raw, finish = tools.raw, tools.finish
local select, error, tonumber, type = select, error, tonumber, type

-- What is called with other than so many arguments says so in C's words there.
local function exactly(count, text, f)
    return function(...)
        if select("#", ...) ~= count then
            error(text, 2)
        end
        return finish(f(...))
    end
end

local one = "exactly one argument expected"

return {
    get_upstreams = exactly(0, "no argument expected", raw.upstream_names),
    get_servers = exactly(1, one, raw.upstream_servers),
    get_primary_peers = exactly(1, one, function(name)
        return raw.upstream_peers(name, false)
    end),
    get_backup_peers = exactly(1, one, function(name)
        return raw.upstream_peers(name, true)
    end),
    set_peer_down = exactly(4, "exactly 4 arguments expected", function(name, backup, id, down)
        if tonumber(id) == nil then
            error("bad argument #3 to 'set_peer_down' (number expected, got " .. type(id) .. ")", 3)
        end
        return raw.upstream_down(name, not not backup, tonumber(id), not not down)
    end),
    current_upstream_name = function()
        return finish(raw.upstream_current())
    end,
}
