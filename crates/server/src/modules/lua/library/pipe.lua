-- `ngx.pipe`: processes, and what goes through their streams.
local tools = ...
local raw, finish, wait, may_wait = tools.raw, tools.finish, tools.wait, tools.may_wait
local type, error, tonumber, tostring, ipairs, rawget = type, error, tonumber, tostring, ipairs, rawget

-- Milliseconds, where nothing else is said; and the most that are taken.
local TIMEOUT, MOST = 10000, 0xffffffff
local STDIN, STDOUT, STDERR = 0, 1, 2

local process = {}
local process_mt = { __index = process }

local function number_of(self)
    if type(self) ~= "table" or getmetatable(self) ~= process_mt then
        error("not a process instance", 3)
    end
    return rawget(self, 1)
end

local names = { "write_timeout", "stdout_read_timeout", "stderr_read_timeout", "wait_timeout" }

-- `given`: by the place in `names`.
local function set_timeouts(number, given)
    for at, name in ipairs(names) do
        local ms = given[at]
        if ms then
            if ms < 0 or ms > MOST then
                error("bad " .. name .. " option", 3)
            end
            raw.pipe_timeout(number, at - 1, ms)
        end
    end
end

function process:pid()
    return finish(raw.pipe_pid(number_of(self)))
end

function process:set_timeouts(write, stdout, stderr, exit)
    set_timeouts(number_of(self), { write, stdout, stderr, exit })
end

local function allowed()
    local refused = may_wait("wait")
    if refused then
        error(refused, 3)
    end
end

local function reader(stream, what)
    return function(self, count)
        local number = number_of(self)
        allowed()
        return wait("pipe_read", number, stream, what, count)
    end
end

for name, stream in pairs({ stdout = STDOUT, stderr = STDERR }) do
    process[name .. "_read_all"] = reader(stream, "all")
    process[name .. "_read_line"] = reader(stream, "line")
    process[name .. "_read_bytes"] = function(self, count)
        if count <= 0 then
            if count < 0 then
                error("bad len argument", 2)
            end
            return ""
        end
        local number = number_of(self)
        allowed()
        return wait("pipe_read", number, stream, "count", count)
    end
    process[name .. "_read_any"] = function(self, most)
        most = tonumber(most)
        if not most or most <= 0 then
            error("bad max argument", 2)
        end
        local number = number_of(self)
        allowed()
        return wait("pipe_read", number, stream, "any", most)
    end
end

function process:write(data)
    local number, kind = number_of(self), type(data)
    if kind == "table" then
        data = table.concat(data)
    elseif kind == "number" then
        data = tostring(data)
    elseif kind ~= "string" then
        error("bad data arg: string, number, or table expected, got " .. kind, 2)
    end
    allowed()
    return wait("pipe_write", number, data)
end

local directions = { stdin = STDIN, stdout = STDOUT, stderr = STDERR }
function process:shutdown(direction)
    local number, which = number_of(self), directions[direction]
    if not which then
        error("bad shutdown arg: " .. tostring(direction), 2)
    end
    return finish(raw.pipe_shutdown(number, which))
end

function process:wait()
    local number = number_of(self)
    allowed()
    return wait("pipe_wait", number)
end

function process:kill(signal)
    local number = number_of(self)
    if type(signal) ~= "number" then
        error("bad signal arg: number expected, got " .. tostring(signal), 2)
    end
    return finish(raw.pipe_kill(number, signal))
end

local function environment(given)
    if type(given) ~= "table" then
        error("bad environ option: table expected, got " .. type(given), 3)
    end
    for at, entry in ipairs(given) do
        local where = "bad value at index " .. at .. " of environ option: "
        if type(entry) ~= "string" then
            error(where .. "string expected, got " .. type(entry), 3)
        elseif not entry:find("=", 2, true) then
            error(where .. "'name=[value]' format expected, got '" .. entry .. "'", 3)
        end
    end
    return given[1] and given or nil
end

local function spawn(args, options)
    if ngx.get_phase() == "init" then
        error("API disabled in the current context", 2)
    end
    local words
    if type(args) == "string" then
        words = { "/bin/sh", "-c", args }
    elseif type(args) == "table" then
        words = {}
        for at, word in ipairs(args) do
            words[at] = tostring(word)
        end
        if #words == 0 then
            error("bad args arg: non-empty table expected", 2)
        end
    else
        error("bad args arg: table expected, got " .. type(args), 2)
    end
    options = options or {}
    local piece = 4096
    if options.buffer_size then
        piece = tonumber(options.buffer_size)
        if not piece or piece < 1 then
            error("bad buffer_size option", 2)
        end
    end
    local environ = options.environ and environment(options.environ)
    local given = {}
    for at, name in ipairs(names) do
        given[at] = options[name] or TIMEOUT
        if given[at] < 0 or given[at] > MOST then
            error("bad " .. name .. " option", 2)
        end
    end
    local number, guard = finish(raw.pipe_spawn(words, environ, options.merge_stderr and true or false, piece))
    if not number then
        return nil, guard
    end
    set_timeouts(number, given)
    return setmetatable({ number, guard }, process_mt)
end

return { version = tools.version, spawn = spawn }
