-- `ngx.balancer`: what `balancer_by_lua*` says of the try that begins.
local tools = ...
local raw, finish = tools.raw, tools.finish
local type, error, tonumber = type, error, tonumber

local balancer = { version = tools.version }

-- Seconds that a connection is kept idle, and requests that it may carry.
local IDLE, REQUESTS = 60, 100

function balancer.set_current_peer(addr, port, host)
    if type(addr) ~= "string" then
        error("bad argument #1 to 'set_current_peer' (string expected, got " .. type(addr) .. ")", 2)
    end
    if host ~= nil and type(host) ~= "string" then
        error("bad argument #3 to 'set_current_peer' (string expected, got " .. type(host) .. ")", 2)
    end
    return finish(raw.balancer_peer(addr, tonumber(port or 0) or -1, host))
end

function balancer.set_more_tries(count)
    return finish(raw.balancer_more_tries(tonumber(count) or 0))
end

function balancer.get_last_failure()
    return finish(raw.balancer_failure())
end

local function milliseconds(seconds, name)
    if not seconds then
        return nil
    elseif type(seconds) ~= "number" or seconds <= 0 then
        error("bad " .. name .. " timeout", 3)
    end
    return seconds * 1000
end

function balancer.set_timeouts(connect, send, read)
    connect, send, read = milliseconds(connect, "connect"), milliseconds(send, "send"), milliseconds(read, "read")
    return finish(raw.balancer_timeouts(connect, send, read))
end

local function limit(given, usual, number)
    if not given then
        return usual
    elseif type(given) ~= "number" then
        error("bad argument #" .. number .. " to 'enable_keepalive' (number expected, got " .. type(given) .. ")", 3)
    elseif given < 0 then
        error("bad argument #" .. number .. " to 'enable_keepalive' (expected >= 0)", 3)
    end
    return given
end

function balancer.enable_keepalive(idle, requests)
    idle, requests = limit(idle, IDLE, 1), limit(requests, REQUESTS, 2)
    return finish(raw.balancer_keep(idle * 1000, requests))
end

function balancer.recreate_request()
    return finish(raw.balancer_recreate())
end

function balancer.set_upstream_tls(on)
    return finish(raw.balancer_tls(on ~= 0 and on ~= false))
end

function balancer.bind_to_local_addr(addr)
    if type(addr) ~= "string" then
        error("bad argument #1 to 'bind_to_local_addr' (string expected, got " .. type(addr) .. ")", 2)
    end
    return finish(raw.balancer_bind(addr))
end

if ngx.config.subsystem == "stream" then
    for _, name in ipairs({ "enable_keepalive", "recreate_request", "set_upstream_tls" }) do
        balancer[name] = function()
            error("'" .. name .. "' not yet implemented in stream subsystem", 2)
        end
    end
end

return balancer
