-- `resty.core.base`: what libraries on lua-resty-core build on. Buffers are LuaJIT's own memory, as there; a request is a number and no
-- pointer, since no function in C takes it: it says whether there is one, and tells requests apart.
local tools = ...
local ffi = require "ffi"
local ffi_new = ffi.new
local byte_array, size_array, text_array =
    ffi.typeof("unsigned char[?]"), ffi.typeof("size_t[1]"), ffi.typeof("unsigned char *[1]")

local base = {
    version = tools.version,
    new_tab = require "table.new",
    clear_tab = require "table.clear",
    get_request = tools.raw.request_number,
    FFI_OK = 0, FFI_ERROR = -1, FFI_AGAIN = -2, FFI_BUSY = -3, FFI_DONE = -4, FFI_DECLINED = -5,
    FFI_NO_REQ_CTX = -100, FFI_BAD_CONTEXT = -101,
}

function base.allows_subsystem(...)
    local own = ngx.config.subsystem
    for _, name in ipairs({ ... }) do
        if name == own then
            return
        end
    end
    error("unsupported subsystem: " .. own, 2)
end

-- Of each kind there is one that is used again; a text that needs more room gets a buffer of its own.
local buffer_size = 4096
local buffer, size_place, text_place

function base.set_string_buf_size(size)
    if size <= 0 then
        return
    end
    buffer, buffer_size = nil, size
end

function base.get_string_buf_size()
    return buffer_size
end

function base.get_string_buf(size, must_allocate)
    if size > buffer_size or must_allocate then
        return byte_array(size)
    end
    if not buffer then
        buffer = byte_array(buffer_size)
    end
    return buffer
end

function base.get_size_ptr()
    if not size_place then
        size_place = size_array()
    end
    return size_place
end

function base.get_errmsg_ptr()
    if not text_place then
        text_place = ffi_new(text_array)
    end
    return text_place
end

-- Keeps a value in a table: the number that it stands under, which is given again once somebody has freed it (by the list at 0).
function base.ref_in_table(table, key)
    if key == nil then
        return -1
    end
    local ref = table[0]
    if ref and ref ~= 0 then
        table[0] = table[ref]
    else
        ref = #table + 1
    end
    table[ref] = key
    return ref
end

return base
