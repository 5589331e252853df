-- Makes `ngx` and what else OpenResty's programs expect, of the functions in `raw` that the server gives. A raw function that refuses gives
-- back FAULT and a text, which is raised here at the line of the program that called. What has to wait yields WAIT, its kind and its
-- arguments to the server, through any coroutines of the program's own, and goes on with what the server gives back. A quick function gives
-- OTHER where its arguments are not for it: then the other one of its name is called.
local raw = ...
local FAULT, WAIT, OTHER, null = raw.FAULT, raw.WAIT, raw.OTHER, raw.null
local type, error, select, tostring, tonumber, pairs, ipairs, next = type, error, select, tostring, tonumber, pairs, ipairs, next
local setmetatable, getmetatable, rawget, rawset, unpack, pcall = setmetatable, getmetatable, rawget, rawset, unpack, pcall
local co_create, co_resume, co_yield, co_status = coroutine.create, coroutine.resume, coroutine.yield, coroutine.status
local co_wrap = coroutine.wrap
local concat, insert = table.concat, table.insert
local floor = math.floor

-- Raises a text at the line of whoever called a function of the server's: of the program, as a rule. As in Lua's own functions it has no line
-- where that is no program: `pcall(ngx.req.set_uri, "")`.
local getinfo = debug.getinfo
local own = { ["=ngx"] = true }
for _, name in ipairs(raw.library_names) do
    own["=" .. name] = true
end
local function raise(text)
    local level = 2
    while true do
        local info = getinfo(level, "S")
        if not info or not own[info.source] then
            -- A function of the server's does not know what it was called as, which Lua's own texts have in quotes.
            if text:find("\0", 1, true) then
                local called = getinfo(level - 1, "n")
                text = text:gsub("%z", called and called.name or "?")
            end
            -- No tail call: the levels would be others.
            error(text, info and level or 0)
        end
        level = level + 1
    end
end

-- What the function at a level was called as; `?` where that is `pcall`.
local function called_as(level)
    local info = getinfo(level + 1, "n")
    return info and info.name or "?"
end

local function finish(...)
    if (...) == FAULT then
        raise((select(2, ...)))
    end
    return ...
end

local function checked(f)
    return function(...)
        return finish(f(...))
    end
end

-- Waits for something of the server's. `may`: in which phases, as the name of a set that the server knows.
local may_wait = raw.may_wait

local function wait(kind, ...)
    return finish(co_yield(WAIT, kind, ...))
end

local function waiting(kind, set)
    return function(...)
        local refused = may_wait(set)
        if refused then
            error(refused, 2)
        end
        return finish(co_yield(WAIT, kind, ...))
    end
end

-- Coroutines of the program: what they wait for goes through whoever resumed them to the server. Those are marked meanwhile: to the program
-- they have not waited themselves.
local running = coroutine.running
local handing_on = setmetatable({}, { __mode = "k" })

local function handed_on(resumer, ...)
    handing_on[resumer] = nil
    return ...
end

local function resumed(co, ok, ...)
    if ok and (...) == WAIT then
        local resumer = running()
        handing_on[resumer] = true
        return resumed(co, co_resume(co, handed_on(resumer, co_yield(...))))
    end
    return ok, ...
end

-- Each coroutine that has resumed another takes some of the thread's own stack, whose end would be the process's: so many may be in each
-- other. Of one that was resumed by no other there is nothing to note.
local MOST_RESUMED = 1000
local depths = setmetatable({}, { __mode = "k" })

local function resume(co, ...)
    local resumer = running()
    local depth = (resumer and depths[resumer] or 0) + 1
    if depth > MOST_RESUMED then
        return false, "C stack overflow"
    end
    if type(co) == "thread" and depths[co] ~= depth then
        depths[co] = depth
    end
    return resumed(co, co_resume(co, ...))
end

coroutine.resume = resume

local function unwrapped(ok, ...)
    if not ok then
        error((...), 0)
    end
    return ...
end

function coroutine.wrap(f)
    local co = co_create(f)
    return function(...)
        return unwrapped(resume(co, ...))
    end
end

local ngx = {
    null = null,
    OK = 0, ERROR = -1, AGAIN = -2, DONE = -4, DECLINED = -5,
    STDERR = 0, EMERG = 1, ALERT = 2, CRIT = 3, ERR = 4, WARN = 5, NOTICE = 6, INFO = 7, DEBUG = 8,
    HTTP_GET = 2, HTTP_HEAD = 4, HTTP_POST = 8, HTTP_PUT = 16, HTTP_DELETE = 32, HTTP_MKCOL = 64, HTTP_COPY = 128,
    HTTP_MOVE = 256, HTTP_OPTIONS = 512, HTTP_PROPFIND = 1024, HTTP_PROPPATCH = 2048, HTTP_LOCK = 4096,
    HTTP_UNLOCK = 8192, HTTP_PATCH = 16384, HTTP_TRACE = 32768,
    HTTP_CONTINUE = 100, HTTP_SWITCHING_PROTOCOLS = 101,
    HTTP_OK = 200, HTTP_CREATED = 201, HTTP_ACCEPTED = 202, HTTP_NO_CONTENT = 204, HTTP_PARTIAL_CONTENT = 206,
    HTTP_SPECIAL_RESPONSE = 300, HTTP_MOVED_PERMANENTLY = 301, HTTP_MOVED_TEMPORARILY = 302, HTTP_SEE_OTHER = 303,
    HTTP_NOT_MODIFIED = 304, HTTP_TEMPORARY_REDIRECT = 307, HTTP_PERMANENT_REDIRECT = 308,
    HTTP_BAD_REQUEST = 400, HTTP_UNAUTHORIZED = 401, HTTP_PAYMENT_REQUIRED = 402, HTTP_FORBIDDEN = 403,
    HTTP_NOT_FOUND = 404, HTTP_NOT_ALLOWED = 405, HTTP_NOT_ACCEPTABLE = 406, HTTP_REQUEST_TIMEOUT = 408,
    HTTP_CONFLICT = 409, HTTP_GONE = 410, HTTP_UPGRADE_REQUIRED = 426, HTTP_TOO_MANY_REQUESTS = 429,
    HTTP_CLOSE = 444, HTTP_ILLEGAL = 451,
    HTTP_INTERNAL_SERVER_ERROR = 500, HTTP_NOT_IMPLEMENTED = 501, HTTP_METHOD_NOT_IMPLEMENTED = 501,
    HTTP_BAD_GATEWAY = 502, HTTP_SERVICE_UNAVAILABLE = 503, HTTP_GATEWAY_TIMEOUT = 504,
    HTTP_VERSION_NOT_SUPPORTED = 505, HTTP_INSUFFICIENT_STORAGE = 507,
}

-- Output ------------------------------------------------------------------------------------------------------------------------

local raw_say, raw_print, raw_log = raw.say, raw.print, raw.log
local say_any, print_any = raw.say_any, raw.print_any

function ngx.say(...)
    local ok, text = raw_say(...)
    if ok == OTHER then
        ok, text = say_any(...)
    end
    if ok == FAULT then
        error(text, 2)
    end
    return ok, text
end

function ngx.print(...)
    local ok, text = raw_print(...)
    if ok == OTHER then
        ok, text = print_any(...)
    end
    if ok == FAULT then
        error(text, 2)
    end
    return ok, text
end

function ngx.log(...)
    local ok, text = raw_log(...)
    if ok == FAULT then
        error(text, 2)
    end
end

function print(...)
    raw_log(6, ...)
end

ngx.send_headers = checked(raw.send_headers)
ngx.eof = checked(raw.eof)

local raw_flush = raw.flush
function ngx.flush(all)
    local ok, text = finish(raw_flush(all))
    if ok == null then
        return wait("flush")
    end
    return ok, text
end

local raw_exit = raw.exit
function ngx.exit(status)
    -- Where nothing can be cut short the status is noted and the program goes on.
    if finish(raw_exit(status)) then
        return finish(co_yield(WAIT, "exit", status))
    end
end

local raw_redirect = raw.redirect
function ngx.redirect(uri, status)
    local code = finish(raw_redirect(uri, status))
    return finish(co_yield(WAIT, "exit", code))
end

local raw_exec = raw.exec
function ngx.exec(...)
    local count = select("#", ...)
    if count < 1 or count > 2 then
        error("expecting one or two arguments, but got " .. count, 2)
    end
    local uri, args = ...
    if type(args) == "table" then
        args = ngx.encode_args(args)
    end
    finish(raw_exec(uri, args))
    return finish(co_yield(WAIT, "exec"))
end

-- The request --------------------------------------------------------------------------------------------------------------------

local raw_var, var_any, raw_set_var, set_var_quick = raw.var, raw.var_any, raw.set_var, raw.set_var_quick
ngx.var = setmetatable({}, {
    __index = function(_, name)
        local value, text = raw_var(name)
        if value == OTHER then
            value, text = var_any(name)
        end
        if value == FAULT then
            error(text, 2)
        end
        return value
    end,
    __newindex = function(_, name, value)
        local ok, text = set_var_quick(name, value)
        if ok == OTHER then
            ok, text = raw_set_var(name, value)
        end
        if ok == FAULT then
            error(text, 2)
        end
    end,
})

local raw_header, raw_set_header, set_header_quick = raw.header, raw.set_header, raw.set_header_quick
ngx.header = setmetatable({}, {
    __index = function(_, name)
        local value, text = raw_header(name)
        if value == FAULT then
            error(text, 2)
        end
        return value
    end,
    __newindex = function(_, name, value)
        local ok, text = set_header_quick(name, value)
        if ok == OTHER then
            ok, text = raw_set_header(name, value)
        end
        if ok == FAULT then
            error(text, 2)
        end
    end,
})

local raw_arg, raw_set_arg = raw.arg, raw.set_arg
ngx.arg = setmetatable({}, {
    __index = function(_, number)
        return finish(raw_arg(number))
    end,
    __newindex = function(_, number, value)
        return finish(raw_set_arg(number, value))
    end,
})

-- Headers of a request and of an answer are found whatever their case and with `_` for `-`.
local headers_mt = {
    __index = function(table, name)
        if type(name) == "number" then
            return rawget(table, tostring(name))
        elseif type(name) ~= "string" then
            return nil
        end
        return rawget(table, (name:lower():gsub("_", "-")))
    end,
}

local function headers_of(f)
    return function(max, as_they_are)
        local table, text = finish(f(max, as_they_are))
        if table and not as_they_are then
            setmetatable(table, headers_mt)
        end
        return table, text
    end
end

ngx.resp = { get_headers = headers_of(raw.resp_headers) }
function ngx.resp.add_header(name, value)
    if value == nil then
        error("invalid header value", 2)
    end
    return finish(raw.add_header(name, value))
end

local req = {
    get_method = checked(raw.req_method),
    set_method = checked(raw.req_set_method),
    get_headers = headers_of(raw.req_headers),
    set_header = checked(raw.req_set_header),
    clear_header = checked(raw.req_clear_header),
    raw_header = checked(raw.req_raw_header),
    get_post_args = checked(raw.req_post_args),
    http_version = checked(raw.req_http_version),
    is_internal = checked(raw.req_is_internal),
    start_time = checked(raw.req_start_time),
    get_body_data = checked(raw.req_body_data),
    get_body_file = checked(raw.req_body_file),
    set_body_data = checked(raw.req_set_body_data),
    set_body_file = checked(raw.req_set_body_file),
    discard_body = checked(raw.req_discard_body),
}
ngx.req = req

-- `into`: a table of the program's own, which is used again.
function req.get_uri_args(max, into)
    local found, text = finish(raw.req_uri_args(max))
    if type(into) ~= "table" then
        return found, text
    end
    for name, value in pairs(found) do
        into[name] = value
    end
    return into, text
end
req.get_query_args = req.get_uri_args

function req.set_uri_args(args)
    if type(args) == "table" then
        args = ngx.encode_args(args)
    elseif type(args) == "number" then
        args = tostring(args)
    elseif type(args) ~= "string" then
        error("bad argument #1 to 'set_uri_args' (string, number, or table expected, but got " .. type(args) .. ")", 2)
    end
    return finish(raw.req_set_args(args))
end

function req.set_uri(uri, jump, binary)
    if finish(raw.req_set_uri(uri, jump, binary)) then
        return finish(co_yield(WAIT, "jump"))
    end
end

function req.read_body()
    -- False: it has to be waited for.
    if finish(raw.req_body_is_read()) then
        return
    end
    return wait("read_body")
end

-- A body that is made piece by piece.
function req.init_body(size)
    if size ~= nil and type(size) ~= "number" then
        error("bad argument #1 to 'init_body' (number expected, got " .. type(size) .. ")", 2)
    end
    return finish(raw.req_init_body(size))
end
function req.append_body(chunk)
    return finish(raw.req_append_body(chunk))
end
function req.finish_body()
    return finish(raw.req_finish_body())
end

-- The table that was asked for last, and its number: most ask for one more than once.
local raw_ctx, ctx_any = raw.ctx, raw.ctx_any
local known_number, known_ctx
local function ctx()
    local table, number = raw_ctx(known_number)
    if table == nil then
        return known_ctx
    elseif table == OTHER then
        table, number = ctx_any()
    end
    if table == FAULT then
        return table, number
    end
    known_number, known_ctx = number, table
    return table
end

local getters = {
    ctx = ctx,
    status = raw.status,
    headers_sent = raw.headers_sent,
    is_subrequest = raw.is_subrequest,
}
local setters = { ctx = raw.set_ctx, status = raw.set_status }
setmetatable(ngx, {
    __index = function(_, name)
        local get = getters[name]
        if get then
            local value, text = get()
            if value == FAULT then
                error(text, 2)
            end
            return value
        end
    end,
    __newindex = function(table, name, value)
        local set = setters[name]
        if set then
            local ok, text = set(value)
            if ok == FAULT then
                error(text, 2)
            end
            return
        end
        rawset(table, name, value)
    end,
})

-- Texts --------------------------------------------------------------------------------------------------------------------------

local raw_escape_uri = raw.escape_uri
function ngx.escape_uri(text, kind)
    local made, why = raw_escape_uri(text, kind)
    if made == FAULT then
        -- The line is that of whoever called the function that calls this.
        error(why, 3)
    end
    return made
end
for _, name in ipairs({ "unescape_uri", "md5", "md5_bin", "sha1_bin", "hmac_sha1", "quote_sql_str", "decode_args" }) do
    ngx[name] = checked(raw[name])
end
function ngx.encode_base64(text, no_padding)
    if no_padding ~= nil and type(no_padding) ~= "boolean" then
        error("bad no_padding: boolean expected, got " .. type(no_padding), 2)
    end
    return finish(raw.encode_base64(text, no_padding))
end
function ngx.decode_base64(text)
    if type(text) ~= "string" then
        error("string argument only", 2)
    end
    return finish(raw.decode_base64(text))
end
-- MIME's form: what is no letter of base64 is passed over.
function ngx.decode_base64mime(text)
    if type(text) ~= "string" then
        error("string argument only", 2)
    end
    return finish(raw.decode_base64((text:gsub("[^%w+/]", ""))))
end
function ngx.encode_args(args)
    if type(args) ~= "table" then
        local got = args == nil and "no value" or type(args)
        error("bad argument #1 to '" .. called_as(1) .. "' (table expected, got " .. got .. ")", 2)
    end
    return finish(raw.encode_args(args))
end
ngx.crc32_short = checked(raw.crc32)
ngx.crc32_long = checked(raw.crc32)

-- Times --------------------------------------------------------------------------------------------------------------------------

-- Those that cannot fail are the server's own.
ngx.now, ngx.time = raw.now, raw.time
for _, name in ipairs({ "update_time", "today", "localtime", "utctime" }) do
    ngx[name] = checked(raw[name])
end
for name, kind in pairs({ cookie_time = "number", http_time = "number", parse_http_time = "string" }) do
    local f = raw[name]
    ngx[name] = function(given)
        if type(given) ~= kind then
            error(kind .. " argument only", 2)
        end
        return finish(f(given))
    end
end
ngx.get_now_ts = nil

local raw_sleep = waiting("sleep", "wait")
function ngx.sleep(seconds)
    seconds = tonumber(seconds)
    if not seconds then
        error("bad argument #1 to 'sleep' (number expected)", 2)
    end
    if not (seconds >= 0) then
        error("invalid sleep duration \"" .. tostring(seconds) .. "\"", 2)
    end
    local refused = may_wait("wait")
    if refused then
        error(refused, 2)
    end
    co_yield(WAIT, "sleep", seconds)
end

-- Expressions --------------------------------------------------------------------------------------------------------------------

local re_exec, re_find = raw.re_exec, raw.re_find
local re = {}
ngx.re = re

-- A flag that does not exist is a mistake of the program's; all else is told.
local function told(text)
    if text:sub(1, 12) == "unknown flag" then
        raise(text)
    end
    return text
end

-- As resty.core: whatever is no text is made one.
local function text_of(value)
    return type(value) == "string" and value or tostring(value)
end

local re_quick, re_find_quick = raw.re_quick, raw.re_find_quick

function re.match(subject, pattern, options, ctx, into)
    local from = ctx and ctx.pos
    if into == nil then
        local match, start, stop = re_quick(subject, pattern, options, from)
        if match == FAULT then
            return nil, (told(start))
        elseif match ~= OTHER then
            if match and ctx then
                ctx.pos = stop + 1
            end
            return match
        end
    end
    local match, start, stop = re_exec(text_of(subject), text_of(pattern), options, from, into)
    if match == FAULT then
        return nil, (told(start))
    end
    if match and ctx then
        ctx.pos = stop + 1
    end
    return match
end

function re.find(subject, pattern, options, ctx, nth)
    local from = ctx and ctx.pos
    local start, stop = re_find_quick(subject, pattern, options, from, nth)
    if start == OTHER then
        start, stop = re_find(text_of(subject), text_of(pattern), options, from, nth)
    end
    if start == FAULT then
        return nil, nil, (told(stop))
    end
    if start and ctx then
        ctx.pos = stop + 1
    end
    return start, stop
end

function re.gmatch(subject, pattern, options)
    subject, pattern = text_of(subject), text_of(pattern)
    local at = 1
    local probe, text = re_exec("", pattern, options, 1)
    if probe == FAULT then
        return nil, (told(text))
    end
    return function()
        if not at or at > #subject + 1 then
            return nil
        end
        local match, start, stop = re_exec(subject, pattern, options, at)
        if match == FAULT then
            at = nil
            return nil, start
        end
        if not match then
            at = nil
            return nil
        end
        at = stop < start and start + 1 or stop + 1
        return match
    end
end

-- A replacement with `$1`, `${1}`, `$$` in pieces: texts and numbers of groups.
local templates = setmetatable({}, { __mode = "k" })
local template_count = 0
local function template(text)
    local known = templates[text]
    if known then
        return known
    end
    local pieces, at = {}, 1
    while true do
        local dollar = text:find("$", at, true)
        if not dollar then
            break
        end
        if dollar > at then
            insert(pieces, text:sub(at, dollar - 1))
        end
        local number, stop = text:match("^(%d+)()", dollar + 1)
        if not number then
            number, stop = text:match("^{(%d+)}()", dollar + 1)
        end
        if number then
            insert(pieces, tonumber(number))
            at = stop
        elseif text:sub(dollar + 1, dollar + 1) == "$" then
            insert(pieces, "$")
            at = dollar + 2
        else
            return nil, "failed to compile the replacement template"
        end
    end
    if at <= #text then
        insert(pieces, text:sub(at))
    end
    if template_count < 1000 then
        template_count = template_count + 1
        templates[text] = pieces
    end
    return pieces
end

local function substitute(subject, pattern, replace, options, all)
    subject, pattern = text_of(subject), text_of(pattern)
    local pieces
    if type(replace) ~= "function" then
        local text
        pieces, text = template(text_of(replace))
        if not pieces then
            return nil, nil, text
        end
    end
    local out, at, last, count = {}, 1, 1, 0
    while at <= #subject + 1 do
        local match, start, stop = re_exec(subject, pattern, options, at)
        if match == FAULT then
            return nil, nil, (told(start))
        end
        if not match then
            break
        end
        count = count + 1
        insert(out, subject:sub(last, start - 1))
        if pieces then
            for _, piece in ipairs(pieces) do
                if type(piece) == "number" then
                    insert(out, match[piece] or "")
                else
                    insert(out, piece)
                end
            end
        else
            insert(out, text_of((replace(match))))
        end
        last = stop + 1
        at = stop < start and start + 1 or stop + 1
        if not all then
            break
        end
    end
    if count == 0 then
        return subject, 0
    end
    insert(out, subject:sub(last))
    return concat(out), count
end

function re.sub(subject, pattern, replace, options)
    return substitute(subject, pattern, replace, options, false)
end

function re.gsub(subject, pattern, replace, options)
    return substitute(subject, pattern, replace, options, true)
end

-- Dictionaries -------------------------------------------------------------------------------------------------------------------

local dict = {}
local function of_dict(self)
    if getmetatable(self) ~= dict then
        error("bad \"zone\" argument", 3)
    end
    return self[1]
end
for name in pairs(raw.dict) do
    local f = raw.dict[name]
    dict[name] = function(self, ...)
        return finish(f(of_dict(self), ...))
    end
end
function dict.expire(self, key, ttl)
    local number = of_dict(self)
    if not ttl then
        error("bad \"exptime\" argument", 2)
    end
    return finish(raw.dict.expire(number, key, ttl))
end
local get_quick, get_any = raw.dict_quick.get, raw.dict.get
function dict.get(self, key)
    local number = of_dict(self)
    local value, text = get_quick(number, key)
    if value == OTHER then
        value, text = get_any(number, key)
    end
    if value == FAULT then
        raise(text)
    elseif text == nil then
        return value
    end
    return value, text
end
for _, name in ipairs({ "set", "safe_set", "add", "safe_add", "replace" }) do
    local quick, any = raw.dict_quick[name], raw.dict[name]
    dict[name] = function(self, key, value, ttl, flags)
        local number = of_dict(self)
        local ok, text, forcible = quick(number, key, value, ttl, flags)
        if ok == OTHER then
            return finish(any(number, key, value, ttl, flags))
        elseif ok == FAULT then
            raise(text)
        end
        return ok, text, forcible
    end
end
local incr_quick, incr = raw.dict_quick.incr, dict.incr
function dict.incr(self, key, value, init, ttl)
    if type(value) ~= "number" then
        value = tonumber(value)
        if not value then
            -- What FFI says of it in OpenResty.
            error("cannot convert 'nil' to 'double'", 2)
        end
    end
    if init == false then
        init = nil
    elseif init ~= nil and type(init) ~= "number" then
        local given = type(init)
        init = tonumber(init)
        if not init then
            error("bad init arg: number expected, got " .. given, 2)
        end
    end
    if ttl ~= nil then
        local given = type(ttl)
        ttl = tonumber(ttl)
        if not ttl then
            error("bad init_ttl arg: number expected, got " .. given, 2)
        elseif ttl < 0 then
            error("bad \"init_ttl\" argument", 2)
        elseif not init then
            error("must provide \"init\" when providing \"init_ttl\"", 2)
        end
    end
    local number, text, forcible = incr_quick(of_dict(self), key, value, init, ttl)
    if number == OTHER then
        return incr(self, key, value, init, ttl)
    elseif number == FAULT then
        raise(text)
    elseif init ~= nil then
        return number, text, forcible
    elseif text ~= nil then
        return number, text
    end
    return number
end
-- As OpenResty's: the methods are found as a dictionary's `__index`, too.
dict.__index = dict
local dict_mt = dict
ngx.shared = {}
for number, name in ipairs(raw.dict_names) do
    ngx.shared[name] = setmetatable({ number }, dict_mt)
end

-- Timers, threads, semaphores ----------------------------------------------------------------------------------------------------

local function timer(repeated)
    local name = repeated and "every" or "at"
    return function(delay, f, ...)
        delay = tonumber(delay)
        if not delay then
            error("bad argument #1 to '" .. name .. "' (number expected)", 2)
        end
        if delay < 0 or (repeated and delay == 0) then
            error("delay cannot be " .. (repeated and "negative or zero" or "negative"), 2)
        end
        if type(f) ~= "function" then
            error("bad argument #2 to '" .. name .. "' (function expected, got " .. (f == nil and "nil" or type(f)) .. ")", 2)
        end
        return finish(raw.timer(delay, repeated, f, ...))
    end
end

ngx.timer = {
    at = timer(false),
    every = timer(true),
    running_count = checked(raw.timers_running),
    pending_count = checked(raw.timers_pending),
}

-- Light threads by the coroutines that made them.
local lights = setmetatable({}, { __mode = "k" })

function coroutine.status(co)
    local status = co_status(co)
    if handing_on[co] then
        return "normal"
    end
    if not lights[co] or status == "running" or status == "normal" or may_wait("wait") then
        return status
    end
    -- The server knows whether it waits for something, and whether somebody has asked how it ended.
    return co_yield(WAIT, "status", co)
end

-- ngx_lua's names for Lua's own functions and for those of `ngx`; what is not among them its table has not.
coroutine._create, coroutine._resume, coroutine._yield, coroutine._status = co_create, co_resume, co_yield, co_status
coroutine._wrap = co_wrap
for _, name in ipairs({ "create", "resume", "yield", "status", "wrap" }) do
    coroutine["__" .. name] = coroutine[name]
end
coroutine.isyieldable = nil

ngx.thread = {}
function ngx.thread.spawn(f, ...)
    if type(f) ~= "function" then
        error("bad argument #1 to 'spawn' (function expected, got " .. type(f) .. ")", 2)
    end
    local refused = may_wait("wait")
    if refused then
        error(refused, 2)
    end
    local co = co_create(f)
    lights[co] = running() or true
    return finish(co_yield(WAIT, "spawn", co, ...))
end
function ngx.thread.wait(...)
    local refused = may_wait("wait")
    if refused then
        error(refused, 2)
    end
    if select("#", ...) == 0 then
        error("at least one coroutine should be specified", 2)
    end
    for number = 1, select("#", ...) do
        local co = (select(number, ...))
        if type(co) ~= "thread" then
            error("bad argument #" .. number .. " to 'wait' (lua thread expected)", 2)
        elseif not lights[co] then
            error("attempt to wait on a coroutine that is not a user thread", 2)
        elseif lights[co] ~= running() then
            error("only the parent coroutine can wait on the thread", 2)
        end
    end
    return finish(co_yield(WAIT, "join", ...))
end
function ngx.thread.kill(co)
    local refused = may_wait("wait")
    if refused then
        error(refused, 2)
    end
    if lights[co] and lights[co] ~= running() then
        return nil, "killer not parent"
    end
    return finish(co_yield(WAIT, "kill", co))
end

local semaphore = {}
local semaphore_mt = { __index = semaphore }
function semaphore.new(count)
    count = count or 0
    if type(count) ~= "number" or count < 0 then
        error("no memory", 2)
    end
    local number, guard = raw.semaphore(count)
    return setmetatable({ number, guard }, semaphore_mt)
end
function semaphore:post(count)
    count = count or 1
    if type(count) ~= "number" or count < 1 then
        error("bad resources number", 2)
    end
    finish(raw.semaphore_post(self[1], count))
    return true
end
function semaphore:wait(seconds)
    if type(seconds) ~= "number" or seconds < 0 then
        error("bad semaphore timeout", 2)
    end
    local refused = may_wait("wait")
    if refused then
        return nil, refused
    end
    local ok, text = raw.semaphore_take(self[1])
    if ok then
        return true
    end
    if seconds == 0 then
        return nil, "timeout"
    end
    return finish(co_yield(WAIT, "semaphore", self[1], seconds))
end
function semaphore:count()
    return raw.semaphore_count(self[1])
end

-- Subrequests --------------------------------------------------------------------------------------------------------------------

local methods = {}
for _, name in ipairs({ "GET", "HEAD", "POST", "PUT", "DELETE", "MKCOL", "COPY", "MOVE", "OPTIONS", "PROPFIND", "PROPPATCH", "LOCK",
                        "UNLOCK", "PATCH", "TRACE" }) do
    methods[ngx["HTTP_" .. name]] = name
end

-- What a subrequest is to be, as the values that the server takes for each.
local function subrequest(uri, options)
    if type(uri) ~= "string" then
        error("bad argument #1 to 'capture' (string expected, got " .. type(uri) .. ")", 3)
    end
    if options == nil then
        return uri, nil, nil, nil, nil, nil, 0
    end
    local args, method, body, vars = options.args, options.method, options.body, options.vars
    if type(args) == "table" then
        args = ngx.encode_args(args)
    end
    if method ~= nil then
        if not methods[method] then
            error("unsupported HTTP method: " .. tostring(method), 3)
        end
        method = methods[method]
    end
    if vars ~= nil and type(vars) ~= "table" then
        error("Bad vars option value", 3)
    end
    local bits = (options.share_all_vars == true and 1 or 0) + (options.copy_all_vars == true and 2 or 0)
        + (options.always_forward_body == true and 4 or 0)
    return uri, args and tostring(args), method, body and tostring(body), vars, options.ctx, bits
end

-- What has become of them: the server gives four values for each.
local function answers(status, body, truncated, header, ...)
    if status == nil then
        return
    end
    return { status = status, body = body, truncated = truncated, header = header }, answers(...)
end
local function answered(status, body, ...)
    if status == FAULT then
        raise(body)
    end
    return answers(status, body, ...)
end

ngx.location = {}
function ngx.location.capture(uri, options)
    local refused = may_wait("capture")
    if refused then
        error(refused, 2)
    end
    if options ~= nil and type(options) ~= "table" then
        error("bad argument #2 to 'capture' (table expected, got " .. type(options) .. ")", 2)
    end
    local status, body, truncated, header = co_yield(WAIT, "capture", subrequest(uri, options))
    if status == FAULT then
        raise(body)
    end
    return { status = status, body = body, truncated = truncated, header = header }
end
function ngx.location.capture_multi(list)
    local refused = may_wait("capture")
    if refused then
        error(refused, 2)
    end
    if type(list) ~= "table" then
        error("bad argument #1 to 'capture_multi' (table expected, got " .. type(list) .. ")", 2)
    end
    if #list == 0 then
        error("bad argument #1 to 'capture_multi' (at least one subrequest should be specified)", 2)
    end
    local values, count = {}, 0
    for _, one in ipairs(list) do
        local at = count
        count = count + 7
        values[at + 1], values[at + 2], values[at + 3], values[at + 4], values[at + 5], values[at + 6], values[at + 7] =
            subrequest(one[1], one[2])
    end
    return answered(co_yield(WAIT, "capture", unpack(values, 1, count)))
end

-- Sockets ------------------------------------------------------------------------------------------------------------------------

local connect_quick, send_quick, read_quick = raw.socket_connect, raw.socket_send, raw.socket_read
local tcp = {}
local tcp_mt = { __index = tcp }

local function socket_of(self, name)
    if type(self) ~= "table" then
        raise("bad argument #1 to '" .. name .. "' (table expected, got " .. type(self) .. ")")
    elseif type(rawget(self, 1)) ~= "number" then
        raise("bad argument #1 to '" .. name .. "' (socket expected)")
    end
    return self[1]
end

local INT_MAX = 2147483647

-- Milliseconds: none, or as many as a timer of the server can have.
local function timeout_of(ms)
    if ms == nil then
        return nil
    end
    local given = tonumber(ms)
    if not given or given < 0 or given > INT_MAX then
        raise("bad timeout value")
    end
    return given
end

local function new_socket(kind, mt)
    return function()
        local refused = may_wait("wait")
        if refused then
            error(refused, 2)
        end
        local number, guard = finish(raw.socket(kind))
        return setmetatable({ number, guard }, mt)
    end
end

function tcp:connect(host, port, options)
    local number = socket_of(self, "connect")
    if type(port) == "table" then
        port, options = nil, port
    end
    host = tostring(host)
    if host:sub(1, 5) ~= "unix:" then
        local given = port
        if given == nil then
            return nil, "missing the port number"
        end
        port = tonumber(port)
        if not port or port < 0 or port > 65535 then
            return nil, "bad port number: " .. tostring(given)
        end
    end
    if options ~= nil and type(options) ~= "table" then
        error("bad argument #" .. (port and 4 or 3) .. " to 'connect' (table expected, got " .. type(options) .. ")", 2)
    end
    options = options or {}
    local size, backlog = options.pool_size, options.backlog
    if size ~= nil and type(size) ~= "number" then
        error("bad argument #3 to 'connect' (bad \"pool_size\" option type: " .. type(size) .. ")", 2)
    elseif size and size <= 0 then
        error("bad argument #3 to 'connect' (bad \"pool_size\" option value: " .. size .. ")", 2)
    end
    if backlog ~= nil and type(backlog) ~= "number" then
        error("bad argument #3 to 'connect' (bad \"backlog\" option type: " .. type(backlog) .. ")", 2)
    elseif backlog and backlog < 0 then
        error("bad argument #3 to 'connect' (bad \"backlog\" option value: " .. backlog .. ")", 2)
    end
    if options.pool ~= nil and type(options.pool) ~= "string" and type(options.pool) ~= "number" then
        error("bad argument #3 to 'connect' (bad \"pool\" option type: " .. type(options.pool) .. ")", 2)
    end
    if next(options) == nil and port then
        local ok = connect_quick(number, host, port)
        if ok ~= OTHER then
            return ok
        end
    end
    local pool = options.pool and tostring(options.pool)
    return wait("connect", number, host, port or 0, pool, options.pool_size, options.backlog)
end
tcp.setpeername = tcp.connect

local function joined(data)
    local last = 0
    for key in pairs(data) do
        if type(key) ~= "number" or key <= 0 or floor(key) ~= key then
            raise("bad argument #1 to 'send' (non-array table found)")
        end
        last = key > last and key or last
    end
    local out = {}
    for at = 1, last do
        local piece = data[at]
        local kind = type(piece)
        if kind == "table" then
            piece = joined(piece)
        elseif kind ~= "string" and kind ~= "number" then
            raise("bad argument #1 to 'send' (bad data type " .. kind .. " found)")
        end
        out[at] = piece
    end
    return concat(out)
end

function tcp.send(...)
    if select("#", ...) ~= 2 then
        error("expecting 2 arguments (including the object), but got " .. select("#", ...), 2)
    end
    local self, data = ...
    local number = socket_of(self, "send")
    local kind = type(data)
    if kind == "table" then
        data = joined(data)
    elseif kind ~= "string" and kind ~= "number" and kind ~= "boolean" and data ~= nil then
        error("bad argument #1 to 'send' (string, number, boolean, nil, or array table expected, got " .. kind .. ")", 2)
    end
    data = tostring(data)
    local sent = send_quick(number, data)
    if sent == OTHER then
        return wait("send", number, data)
    elseif sent == #data then
        return sent
    end
    -- The rest, when the kernel has room again.
    local ok, why = wait("send", number, data:sub(sent + 1))
    if not ok then
        return nil, why
    end
    return #data
end

function tcp:receive(what)
    local number = socket_of(self, "receive")
    if what == nil then
        what = "*l"
    elseif type(what) == "string" and tonumber(what) then
        what = tonumber(what)
    end
    if type(what) == "number" then
        if what < 0 then
            error("bad argument #1 to 'receive' (bad pattern argument)", 2)
        end
        what = floor(what)
    elseif what ~= "*l" and what ~= "*a" then
        error("bad argument #1 to 'receive' (bad pattern argument: " .. tostring(what) .. ")", 2)
    end
    local data = read_quick(number, what)
    if data ~= OTHER then
        return data
    end
    return wait("receive", number, what)
end

function tcp.receiveany(...)
    if select("#", ...) ~= 2 then
        error("expecting 2 arguments (including the object), but got " .. select("#", ...), 2)
    end
    local self, most = ...
    local number = socket_of(self, "receiveany")
    most = floor(tonumber(most) or 0)
    if most < 1 then
        error("bad argument #2 to '" .. called_as(1) .. "' (bad max argument)", 2)
    end
    return wait("receiveany", number, most)
end

function tcp:receiveuntil(pattern, options)
    local number = socket_of(self, "receiveuntil")
    pattern = tostring(pattern)
    if pattern == "" then
        return nil, "pattern is empty"
    end
    local inclusive = options and options.inclusive and true or false
    local ended = false
    return function(size)
        if size ~= nil and not tonumber(size) then
            error("bad argument #1 to '" .. called_as(1) .. "' (number expected, got " .. type(size) .. ")", 2)
        end
        if ended then
            ended = false
            return nil, nil, nil
        end
        local data, text, partial, over = wait("receiveuntil", number, pattern, inclusive, tonumber(size))
        if not data then
            return nil, text, partial
        end
        -- Pieces of a certain size end with one `nil`.
        ended = size and over
        return data
    end
end

-- Only before the content of a session of `stream`: what is read stays.
function tcp:peek(size)
    local number = socket_of(self, "peek")
    if raw.phase() ~= "preread" then
        error("API disabled in the context of " .. raw.phase(), 2)
    end
    size = tonumber(size)
    if not size or size < 1 then
        error("bad argument #1 to 'peek' (bad size argument)", 2)
    end
    return wait("peek", number, floor(size))
end
function tcp:shutdown(direction)
    if direction ~= "send" then
        error("bad shutdown argument: " .. tostring(direction), 2)
    end
    return finish(raw.socket_shutdown(socket_of(self, "shutdown")))
end
function tcp:settimeout(ms)
    ms = timeout_of(ms)
    finish(raw.socket_timeouts(socket_of(self, "settimeout"), ms, ms, ms))
end
function tcp:settimeouts(connect, send, read)
    connect, send, read = timeout_of(connect), timeout_of(send), timeout_of(read)
    finish(raw.socket_timeouts(socket_of(self, "settimeouts"), connect, send, read))
end
local function option_value(value)
    if type(value) == "boolean" then
        return value and 1 or 0
    end
    local number = tonumber(value)
    if not number then
        raise("bad argument #3 to 'setoption' (cannot convert '" .. type(value) .. "' to 'int')")
    end
    return number
end
function tcp:setoption(name, value)
    if name == nil then
        return nil, "missing the \"option\" argument"
    elseif value == nil then
        return nil, "missing the \"value\" argument"
    end
    return finish(raw.socket_option(socket_of(self, "setoption"), tostring(name), option_value(value)))
end
function tcp:getoption(name)
    if name == nil then
        return nil, "missing the \"option\" argument"
    end
    return finish(raw.socket_option(socket_of(self, "getoption"), tostring(name)))
end
function tcp:setkeepalive(ms, size)
    local number = socket_of(self, "setkeepalive")
    if ms ~= nil and type(ms) ~= "number" then
        raise("bad argument #1 to 'setkeepalive' (number expected, got " .. type(ms) .. ")")
    elseif size ~= nil and type(size) ~= "number" then
        raise("bad argument #2 to 'setkeepalive' (number expected, got " .. type(size) .. ")")
    elseif size and size <= 0 then
        error("bad argument #3 to '?' (bad \"pool_size\" option value: " .. size .. ")", 0)
    end
    return finish(raw.socket_keep(number, ms and timeout_of(ms), size))
end
function tcp:bind(ip, port)
    local number = socket_of(self, "bind")
    if port ~= nil and not tonumber(port) then
        return nil, "expecting port to be anumber but got type: " .. type(port)
    end
    port = tonumber(port) or 0
    if port < 0 or port > 65535 then
        return nil, ("bad port number: %d"):format(port)
    end
    return finish(raw.socket_bind(number, tostring(ip), floor(port)))
end
function tcp:getreusedtimes()
    return finish(raw.socket_reused(socket_of(self, "getreusedtimes")))
end
function tcp:close()
    return finish(raw.socket_close(socket_of(self, "close")))
end
function tcp:getfd()
    return finish(raw.socket_fd(socket_of(self, "getfd")))
end
function tcp:setclientcert(cert, key)
    local number = socket_of(self, "setclientcert")
    if not cert and not key then
        return finish(raw.socket_certificate(number))
    elseif not cert or not key then
        return nil, "client certificate must be supplied with corresponding private key"
    end
    if type(cert) ~= "userdata" then
        return nil, "bad cert arg: cdata expected, got " .. type(cert)
    elseif type(key) ~= "userdata" then
        return nil, "bad pkey arg: cdata expected, got " .. type(key)
    end
    return finish(raw.socket_certificate(number, cert, key))
end

-- A session of TLS, as a program holds it: what the server keeps for it goes with it. In `stream` it is of Lua's own kind for what is
-- another's, in `http` of FFI's, as in OpenResty.
local session_of, number_of_session
if raw.subsystem == "stream" then
    local numbers = setmetatable({}, { __mode = "k" })
    session_of = function(number)
        local session = newproxy(true)
        getmetatable(session).__gc = function()
            raw.ssl_session_free(number)
        end
        numbers[session] = number
        return session
    end
    number_of_session = function(session)
        return numbers[session]
    end
else
    local ffi = require "ffi"
    ffi.cdef("struct ironweir_tls_session { uint32_t number; };")
    local make = ffi.metatype("struct ironweir_tls_session", {
        __gc = function(session)
            raw.ssl_session_free(tonumber(session.number))
        end,
    })
    session_of = function(number)
        return make(number)
    end
    number_of_session = function(session)
        return type(session) == "cdata" and tonumber(session.number) or nil
    end
end

local function shaken(session, text)
    if type(session) == "number" then
        return session_of(session)
    end
    return session, text
end

function tcp:sslhandshake(session, name, verify)
    local number = socket_of(self, "sslhandshake")
    if session then
        session = number_of_session(session)
    end
    return shaken(wait("handshake", number, name and tostring(name), verify and true or false, session))
end

local udp = { setpeername = tcp.connect, send = tcp.send, settimeout = tcp.settimeout, close = tcp.close, bind = tcp.bind }
local udp_mt = { __index = udp }
function udp:receive(most)
    local number = socket_of(self, "receive")
    -- No datagram is larger.
    most = math.min(tonumber(most) or 65536, 65536)
    return wait("receiveany", number, most)
end

-- What a metatable of OpenResty's has, and no more.
local function methods(of, names)
    local made = {}
    for _, name in ipairs(names) do
        made[name] = of[name]
    end
    made.__index = made
    return made
end

for name, why in pairs({ settrustedstore = "stores of OpenSSL", getsslsession = "sessions of OpenSSL",
                         getsslpointer = "pointers of OpenSSL", getsslctx = "pointers of OpenSSL" }) do
    tcp[name] = function(self)
        socket_of(self, name)
        return nil, name .. " is not supported: there are no " .. why .. " here"
    end
end
local raw_mt, body_mt = tcp_mt, tcp_mt
if raw.subsystem == "http" then
    local reading = { "receive", "receiveany", "receiveuntil", "settimeout", "settimeouts", "setoption", "getoption", "getfd" }
    body_mt = methods(tcp, reading)
    insert(reading, "send")
    raw_mt = methods(tcp, reading)
    for _, name in ipairs({ "bind", "connect", "close", "getreusedtimes", "setkeepalive", "setclientcert", "settrustedstore", "sslhandshake",
                            "getsslsession", "getsslpointer", "getsslctx" }) do
        insert(reading, name)
    end
    tcp_mt = methods(tcp, reading)
    udp_mt = methods(udp, { "setpeername", "send", "receive", "settimeout", "close", "bind" })
end

ngx.socket = { tcp = new_socket("tcp", tcp_mt), stream = new_socket("tcp", tcp_mt), udp = new_socket("udp", udp_mt) }
function ngx.socket.connect(host, port, options)
    local sock = ngx.socket.tcp()
    local ok, text = sock:connect(host, port, options)
    if not ok then
        return nil, text
    end
    return sock
end
function req.socket(all)
    local number, guard, datagrams = finish(raw.req_socket(all))
    if not number then
        return nil, guard
    end
    return setmetatable({ number, guard }, datagrams and udp_mt or all and raw_mt or body_mt)
end

-- The worker, the phase ----------------------------------------------------------------------------------------------------------

ngx.worker = {
    pid = raw.worker_pid, id = raw.worker_id, count = raw.worker_count, exiting = raw.worker_exiting,
    -- A worker is a thread: all have the process's number.
    pids = function()
        local pids = {}
        for worker = 1, raw.worker_count() do
            pids[worker] = raw.worker_pid()
        end
        return pids
    end,
}
ngx.config = {
    subsystem = raw.subsystem, debug = false, ngx_lua_version = 10032, nginx_version = 1031005,
    prefix = raw.prefix, nginx_configure = raw.nginx_configure,
}
ngx.get_phase = raw.phase

-- The bits of ngx_lua for phases (`NGX_HTTP_LUA_CONTEXT_SET` and its like).
local phase_bits = {
    set = 0x1, rewrite = 0x2, access = 0x4, content = 0x8, log = 0x10, header_filter = 0x20, body_filter = 0x40, timer = 0x80,
    init_worker = 0x100, balancer = 0x200, ssl_cert = 0x400, ssl_session_store = 0x800, ssl_session_fetch = 0x1000, exit_worker = 0x2000,
    ssl_client_hello = 0x4000, server_rewrite = 0x8000, proxy_ssl_verify = 0x10000, precontent = 0x20000, proxy_ssl_cert = 0x40000,
}
function ngx.get_raw_phase()
    return phase_bits[raw.phase()] or 0
end
ngx._phase_ctx = ngx.get_raw_phase
function ngx.on_abort(f)
    if type(f) ~= "function" then
        error("bad argument #1 to 'on_abort' (function expected, got " .. type(f) .. ")", 2)
    end
    if not finish(raw.checks_abort()) then
        return nil, "lua_check_client_abort is off"
    end
    return co_yield(WAIT, "on_abort", co_create(f))
end
function ngx.run_worker_thread(...)
    local refused = may_wait("wait")
    if refused then
        error(refused, 2)
    end
    return finish(co_yield(WAIT, "worker_thread", ...))
end

-- Libraries ----------------------------------------------------------------------------------------------------------------------

local loaded, preload = package.loaded, package.preload
loaded.ngx = ngx
_G.ngx = ngx
-- What the directives of set_misc that are functions of one text do.
_G.ndk = { set_var = setmetatable({}, {
    __index = function(_, name)
        if not finish(raw.set_var_exists(tostring(name))) then
            raise("ndk.set_var: directive \"" .. tostring(name) .. "\" not found or does not use ndk_set_var_value")
        end
        return function(text)
            return finish(raw.set_var_call(name, text == nil and "" or tostring(text)))
        end
    end,
    __newindex = function()
        raise("not allowed")
    end,
}) }

local function module(name, made)
    preload[name] = function()
        return made
    end
end

local core_version = "0.1.32"
local nothing = { version = core_version }
loaded["resty.core"] = nothing
for _, name in ipairs({ "resty.core", "resty.core.shdict", "resty.core.var", "resty.core.hash", "resty.core.base64", "resty.core.uri",
                        "resty.core.exit", "resty.core.worker", "resty.core.phase", "resty.core.ndk", "resty.core.socket",
                        "resty.core.coroutine", "resty.core.param" }) do
    module(name, nothing)
end
module("resty.core.ctx", {
    version = core_version,
    get_ctx_table = function(given)
        return (finish(ctx_any(given)))
    end,
})
module("resty.core.time", {
    version = core_version,
    monotonic_msec = raw.monotonic_ms,
    monotonic_time = function() return raw.monotonic_ms() / 1000 end,
})
-- Names of `ngx` that are functions of a program's own.
module("resty.core.misc", {
    version = core_version,
    register_ngx_magic_key_getter = function(name, get) getters[name] = get end,
    register_ngx_magic_key_setter = function(name, set) setters[name] = set end,
})
module("resty.core.regex", { version = core_version, is_regex_cache_empty = raw.re_is_empty, set_buf_grow_ratio = function() end })
module("resty.core.request", { version = core_version, set_req_header = function(name, value, override)
    if override then
        return req.set_header(name, value)
    end
    return finish(raw.req_add_header(name, value))
end })
module("resty.core.response", {
    version = core_version,
    set_resp_header = function(_, name, value, no_override)
        if no_override then
            return finish(raw.add_header(name, value))
        end
        ngx.header[name] = value
    end,
    bypass_if_checks = checked(raw.bypass_if_checks),
})
module("resty.core.utils", {
    version = core_version,
    -- One character in place of another, in texts that have the first of them somewhere.
    str_replace_char = function(text, find, with)
        if not text:find(find, 1, true) then
            return text
        end
        return (text:gsub(find:sub(1, 1):gsub("%W", "%%%0"), (with:sub(1, 1):gsub("%%", "%%%%"))))
    end,
})
module("ngx.semaphore", { version = "0.1.32", new = semaphore.new })
module("ngx.re", {
    version = "0.1.32",
    opt = function(name, value)
        if name ~= "jit_stack_size" then
            error("unrecognized option name", 2)
        elseif type(value) ~= "number" or value < 0 then
            error("bad argument #2 to 'opt' (number expected, got " .. type(value) .. ")", 2)
        end
        finish(raw.re_jit_stack(value))
    end,
    split = function(subject, pattern, options, ctx, max, res)
        if res ~= nil and type(res) ~= "table" then
            error("res is not a table", 2)
        end
        subject, pattern = tostring(subject), tostring(pattern)
        local out, count, pieces = res or {}, 0, 0
        -- Where the piece begins, and from where on its end is looked for.
        local at = ctx and ctx.pos or 1
        local position = at
        max = max or 0
        if at > #subject and at > 1 then
            out[1] = nil
            return out
        end
        while position <= #subject and (max <= 0 or pieces < max - 1) do
            local match, start, stop = re_exec(subject, pattern, options, position)
            if match == FAULT then
                return nil, start
            end
            if not match or start > #subject then
                break
            end
            if stop < start and start == at then
                -- Nothing between nothing: the end is further on.
                position = position + 1
            else
                pieces = pieces + 1
                count = count + 1
                out[count] = subject:sub(at, start - 1)
                for _, group in ipairs(match) do
                    if group then
                        count = count + 1
                        out[count] = group
                    end
                end
                at = stop + 1
                position = at
            end
        end
        count = count + 1
        out[count] = subject:sub(at)
        -- Without a limit empty pieces at the end are none, as in Perl.
        while max <= 0 and pieces > 0 and count > 0 and out[count] == "" do
            out[count] = nil
            count = count - 1
        end
        out[count + 1] = nil
        return out
    end,
})
module("ngx.base64", {
    version = "0.1.32", encode_base64url = checked(raw.encode_base64url),
    decode_base64url = function(text)
        local plain = finish(raw.decode_base64url(text))
        if plain == nil then
            return nil, "invalid input"
        end
        return plain
    end,
})
module("ngx.errlog", {
    version = "0.1.32",
    raw_log = function(level, text)
        if type(text) ~= "string" then
            error("bad argument #2 to 'raw_log' (must be a string)", 2)
        end
        return finish(raw.raw_log(level, text))
    end,
    get_sys_filter_level = raw.log_level,
    set_filter_level = function(level)
        if not level then
            return nil, "missing \"level\" argument"
        end
        return finish(raw.log_least(level))
    end,
    get_logs = function(most, into)
        return finish(raw.log_lines(tonumber(most) or 10, into or {}))
    end,
})
-- `init_by_lua*` is the master's there. Each thread runs it here, to the same end. After it nothing changes any more.
local process_type = not raw.has_master and "single" or nil
module("ngx.process", {
    version = "0.1.32",
    type = function()
        if process_type then
            return process_type
        elseif raw.phase() == "init" then
            return "master"
        end
        process_type = "worker"
        return process_type
    end,
    enable_privileged_agent = function(connections)
        if raw.phase() ~= "init" then
            return nil, "API disabled in the current context"
        elseif connections and (type(connections) ~= "number" or connections < 0) then
            return nil, "bad 'connections' argument: number expected and greater than 0"
        end
        return nil, "not supported yet"
    end,
    signal_graceful_exit = function() return error("not supported yet", 2) end,
    get_master_pid = raw.master_pid,
})
module("ngx.resp", {
    version = "0.1.32", add_header = ngx.resp.add_header, bypass_if_checks = checked(raw.bypass_if_checks),
    set_status = function(status, reason)
        if type(status) ~= "number" then
            error("bad 'status' argument: number expected, got " .. type(status), 2)
        elseif reason == nil then
            ngx.status = status
            return
        end
        return finish(raw.set_status_line(status, tostring(reason)))
    end,
})
module("ngx.req", {
    version = "0.1.32",
    add_header = function(name, value)
        if name == nil then
            error("bad 'name' argument: string expected, got nil", 2)
        elseif value == nil then
            error("bad 'value' argument: string or table expected, got nil", 2)
        elseif type(value) ~= "table" then
            return finish(raw.req_add_header(tostring(name), value))
        elseif #value == 0 then
            error("bad 'value' argument: non-empty table expected", 2)
        end
        for _, one in ipairs(value) do
            finish(raw.req_add_header(tostring(name), one))
        end
    end,
})

-- Additions of OpenResty's LuaJIT to `table`, as modules and where programs look for them.
local table_lib = {
    ["table.nkeys"] = function(t)
        local count = 0
        for _ in pairs(t) do
            count = count + 1
        end
        return count
    end,
    ["table.isempty"] = function(t)
        return next(t) == nil
    end,
    ["table.isarray"] = function(t)
        local last, count = 0, 0
        for key in pairs(t) do
            if type(key) ~= "number" or key <= 0 or floor(key) ~= key then
                return false
            end
            count, last = count + 1, key > last and key or last
        end
        return true
    end,
    ["table.clone"] = function(t)
        local copy = {}
        for key, value in pairs(t) do
            copy[key] = value
        end
        return copy
    end,
}
for name, f in pairs(table_lib) do
    module(name, f)
    table[name:sub(7)] = f
end

-- cjson.
local function boolean(name, value)
    if value == nil or type(value) == "boolean" then
        return value
    elseif value == "on" or value == "off" then
        return value == "on"
    end
    error("bad argument #1 to '" .. name .. "' (invalid option '" .. tostring(value) .. "')", 4)
end

local function integer(name, number, value, least, most)
    if value == nil then
        return nil
    end
    local given = tonumber(value)
    if not given then
        error("bad argument #" .. number .. " to '" .. name .. "' (number expected, got " .. type(value) .. ")", 4)
    elseif given < least or given > most then
        error("bad argument #" .. number .. " to '" .. name .. "' (expected integer between " .. least .. " and " .. most .. ")", 4)
    end
    return floor(given)
end

local function cjson()
    local options, encode, decode = raw.json_options()
    local array_mt, empty_array_mt = raw.array_mt, raw.empty_array_mt
    local json = { _NAME = "cjson", _VERSION = "2.1.0.14", null = null, array_mt = raw.array_mt,
                   empty_array = setmetatable({}, raw.array_mt), empty_array_mt = raw.empty_array_mt }
    function json.encode(value)
        return finish(encode(value, array_mt, empty_array_mt))
    end
    function json.decode(text)
        return finish(decode(text, array_mt))
    end
    -- Each setter gives back what holds: without an argument it only tells.
    local function flag(name, option, value, turned)
        json[name] = function(given)
            given = boolean(name, given)
            if given ~= nil then
                value = given
                local on = given
                if turned then
                    on = not given
                end
                raw.json_set(options, option, on)
            end
            return value
        end
    end
    flag("encode_empty_table_as_object", "empty_is_array", true, true)
    flag("decode_array_with_array_mt", "mark_arrays", false)
    flag("encode_escape_forward_slash", "escape_slash", true)
    flag("encode_skip_unsupported_value_types", "skip_others", false)
    flag("decode_invalid_numbers", "decode_invalid", true)
    local keep = true
    -- The buffer is the server's own, and kept in any case.
    function json.encode_keep_buffer(on)
        on = boolean("encode_keep_buffer", on)
        if on ~= nil then
            keep = on
        end
        return keep
    end
    local function number(name, option, value, least, most)
        json[name] = function(given)
            given = integer(name, 1, given, least, most)
            if given then
                value = given
                raw.json_set(options, option, given)
            end
            return value
        end
    end
    number("encode_max_depth", "encode_depth", 1000, 1, INT_MAX)
    number("decode_max_depth", "decode_depth", 1000, 1, INT_MAX)
    number("encode_number_precision", "precision", 14, 1, 16)
    local convert, ratio, safe = false, 2, 10
    function json.encode_sparse_array(on, times, least)
        on = boolean("encode_sparse_array", on)
        times = integer("encode_sparse_array", 2, times, 0, INT_MAX)
        least = integer("encode_sparse_array", 3, least, 0, INT_MAX)
        if on ~= nil then
            convert = on
            raw.json_set(options, "sparse_is_object", on)
        end
        if times then
            ratio = times
            raw.json_set(options, "sparse_ratio", times)
        end
        if least then
            safe = least
            raw.json_set(options, "sparse_safe", least)
        end
        return convert, ratio, safe
    end
    local invalid = false
    function json.encode_invalid_numbers(how)
        if how == "null" then
            invalid = "null"
            raw.json_set(options, "encode_invalid", "null")
        elseif how ~= nil then
            invalid = boolean("encode_invalid_numbers", how)
            raw.json_set(options, "encode_invalid", invalid)
        end
        return invalid
    end
    local indent = ""
    function json.encode_indent(text)
        if text ~= nil then
            indent = tostring(text)
            raw.json_set(options, "indent", indent)
        end
        return indent
    end
    json.new = cjson
    return json
end
preload.cjson = cjson
preload["cjson.safe"] = function()
    local json = cjson()
    local encode, decode = json.encode, json.decode
    function json.encode(value)
        local ok, made = pcall(encode, value)
        if ok then
            return made
        end
        return nil, (tostring(made):gsub("^[^:]*:%d+: ", ""))
    end
    function json.decode(text)
        local ok, made = pcall(decode, text)
        if ok then
            return made
        end
        return nil, (tostring(made):gsub("^[^:]*:%d+: ", ""))
    end
    json.new = preload["cjson.safe"]
    return json
end

-- The digests of lua-resty-string, whose own call OpenSSL.
for _, name in ipairs({ "md5", "sha1", "sha224", "sha256", "sha384", "sha512" }) do
    local class = { _VERSION = "0.15" }
    local mt = { __index = class }
    function class.new()
        return setmetatable({ pieces = {} }, mt)
    end
    function class:update(text)
        insert(self.pieces, tostring(text))
        return true
    end
    function class:final()
        return raw.digest(name, concat(self.pieces))
    end
    function class:reset()
        self.pieces = {}
        return true
    end
    module("resty." .. name, class)
end
module("resty.string", {
    _VERSION = "0.15",
    to_hex = checked(raw.to_hex),
    atoi = function(text) return tonumber(text) end,
})
module("resty.random", {
    _VERSION = "0.15",
    bytes = function(count) return raw.random_bytes(count) end,
    token = function(count) return raw.to_hex(raw.random_bytes(count)) end,
    number = function(low, high) return math.random(low, high) end,
})

-- Libraries that call OpenSSL by FFI (lua-resty-string's `resty.aes`, lua-resty-openssl) expect that its symbols are the server's own. Here
-- they are the machine's library's, which is loaded when a program first declares one of them.
do
    local ffi = require "ffi"
    local cdef = ffi.cdef
    local families = { "EVP", "HMAC", "RSA", "EC", "DH", "BN", "BIO", "PEM", "X509", "ASN1", "RAND", "ERR", "OPENSSL", "OpenSSL", "PKCS12",
                       "CRYPTO", "OBJ", "AES", "MD5", "SHA1", "SHA256", "SHA512", "d2i", "i2d", "SSL" }
    local libraries = { ["libcrypto.so.3"] = true }
    local function load(name)
        libraries[name] = nil
        pcall(ffi.load, name, true)
    end
    function ffi.cdef(text, ...)
        if type(text) == "string" and next(libraries) then
            for _, family in ipairs(families) do
                if text:find("%f[%w]" .. family .. "_[%w_]+%s*%(") then
                    if libraries["libcrypto.so.3"] then
                        load("libcrypto.so.3")
                        libraries["libssl.so.3"] = true
                    end
                    if family == "SSL" and libraries["libssl.so.3"] then
                        load("libssl.so.3")
                    end
                end
            end
        end
        return cdef(text, ...)
    end
end

-- What `ngx.ssl` and `ngx.proxyssl` say of versions. `get`: the number of the one that is spoken.
local versions = { [0x0300] = "SSLv3", [0x0301] = "TLSv1", [0x0302] = "TLSv1.1", [0x0303] = "TLSv1.2", [0x0304] = "TLSv1.3" }
local function add_versions(library, get)
    library.SSL3_VERSION, library.TLS1_VERSION, library.TLS1_1_VERSION = 0x0300, 0x0301, 0x0302
    library.TLS1_2_VERSION, library.TLS1_3_VERSION = 0x0303, 0x0304
    library.get_tls1_version = get
    function library.get_tls1_version_str()
        local version, text = get()
        if not version then
            return nil, text
        end
        local name = versions[version]
        if not name then
            return nil, "unknown version"
        end
        return name
    end
end

-- Libraries that are made when they are asked for.
local tools = {
    raw = raw, finish = finish, checked = checked, wait = wait, waiting = waiting, may_wait = may_wait, null = null, WAIT = WAIT,
    version = "0.1.32", co_yield = co_yield, lights = lights, add_versions = add_versions,
}
for _, name in ipairs(raw.library_names) do
    preload[name] = function()
        return raw.library(name)(tools)
    end
end

-- What is about HTTP is not there in `stream`.
if raw.subsystem == "stream" then
    for _, name in ipairs({ "header", "location", "redirect", "exec", "resp", "arg", "send_headers", "is_subrequest" }) do
        rawset(ngx, name, nil)
    end
    ngx.req = { socket = req.socket, start_time = req.start_time }
end

-- Globals are the machine's: who writes one by accident shares it with all requests.
local traceback = debug.traceback
setmetatable(_G, {
    __newindex = function(table, name, value)
        rawset(table, name, value)
        raw.global_written(name, traceback("", 2))
    end,
})
