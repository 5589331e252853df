-- `ngx.ssl.clienthello`: what a client asks for, before anything is settled.
local tools = ...
local raw, finish = tools.raw, tools.finish
local error, ipairs = error, ipairs

local hello = { version = tools.version }

local function in_its_phase(f)
    return function(...)
        if ngx.get_phase() ~= "ssl_client_hello" then
            error("API disabled in the current context", 2)
        end
        return finish(f(...))
    end
end

hello.get_client_hello_server_name = in_its_phase(raw.hello_server_name)
hello.get_client_hello_ext = in_its_phase(raw.hello_ext)
hello.get_client_hello_ext_present = in_its_phase(raw.hello_exts)
hello.get_client_hello_ciphers = in_its_phase(raw.hello_ciphers)

-- The extension "supported_versions": a list of numbers of two bytes, the best first.
local SUPPORTED_VERSIONS = 43
local versions = { [0x002] = "SSLv2", [0x300] = "SSLv3", [0x301] = "TLSv1", [0x302] = "TLSv1.1", [0x303] = "TLSv1.2",
                   [0x304] = "TLSv1.3" }

hello.get_supported_versions = in_its_phase(function()
    local body, text = finish(raw.hello_ext(SUPPORTED_VERSIONS))
    if not body or body == "" or #body - 1 ~= body:byte(1) then
        return nil, text
    end
    local found = {}
    -- From the last to the first, as OpenResty gives them.
    for at = #body - 1, 2, -2 do
        local name = versions[body:byte(at) * 256 + body:byte(at + 1)]
        if name then
            found[#found + 1] = name
        end
    end
    return found
end)

local bits = { ["SSLv2"] = 0x02, ["SSLv3"] = 0x04, ["TLSv1"] = 0x08, ["TLSv1.1"] = 0x10, ["TLSv1.2"] = 0x20, ["TLSv1.3"] = 0x40 }

hello.set_protocols = in_its_phase(function(list)
    local sum, seen = 0, {}
    for _, name in ipairs(list) do
        local bit = bits[name]
        if not bit then
            return nil, "invalid protocols failed"
        end
        if not seen[name] then
            seen[name] = true
            sum = sum + bit
        end
    end
    return finish(raw.hello_set_protocols(sum))
end)

return hello
