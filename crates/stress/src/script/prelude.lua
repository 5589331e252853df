-- The table `wrk` as scripts know it, and what stands behind it. Globals of the tool: __scheme, __host, __port, __path,
-- __method, __headers, __body, __authority.
wrk = {
  scheme = __scheme, host = __host, port = __port, path = __path,
  method = __method, headers = __headers, body = __body, thread = nil,
}

function wrk.format(method, path, headers, body)
  method, path = method or wrk.method, path or wrk.path
  headers, body = headers or wrk.headers, body or wrk.body
  local lines = { method .. " " .. path .. " HTTP/1.1" }
  local has_host, has_length = false, false
  for name, value in pairs(headers) do
    local lower = string.lower(name)
    has_host = has_host or lower == "host"
    has_length = has_length or lower == "content-length" or lower == "transfer-encoding"
    lines[#lines + 1] = name .. ": " .. tostring(value)
  end
  if not has_host then table.insert(lines, 2, "Host: " .. __authority) end
  if body and not has_length then lines[#lines + 1] = "Content-Length: " .. #body end
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. (body or "")
end

-- Called in each thread, with what stood behind `--`.
function __begin(args)
  if not wrk.headers["Host"] then wrk.headers["Host"] = __authority end
  if type(init) == "function" then init(args) end
  local fixed = wrk.format()
  wrk.request = function() return fixed end
  return fixed
end
