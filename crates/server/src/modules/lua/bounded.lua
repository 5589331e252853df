-- Where `lua_max_run_time` is set: takes the ways out of it from programs. When the time is over, every instruction raises the error again
-- (`watch.rs`), so that whoever catches it gets no further.
local is_over = ...
local pcall, xpcall, error, type = pcall, xpcall, error, type

-- What is compiled looks at no clock.
jit.off()
jit.flush()
jit.on = function() end

-- There is one hook, and it is ours.
debug.sethook = function()
    error("debug.sethook is not there where lua_max_run_time is set", 2)
end

-- A function that ends with a call of `pcall` would have no instruction left that could raise anything: here is one. Where the stack is at its
-- end the hook cannot run, so whoever has caught something looks at the clock.
local function caught(ok, ...)
    if not ok then
        is_over()
    end
    return ok, ...
end

function _G.pcall(...)
    return caught(pcall(...))
end

-- LuaJIT looks at no hook while it handles an error that a hook has raised: the program's own handler would run without end.
function _G.xpcall(f, handler, ...)
    if type(handler) ~= "function" then
        return xpcall(f, handler, ...)
    end
    return caught(xpcall(f, function(e)
        if is_over() then
            return e
        end
        return handler(e)
    end, ...))
end
