-- `ngx.ocsp`: answers of OCSP for the certificates that a program gives. Asking the responder is the program's own.
local tools = ...
local raw, finish = tools.raw, tools.finish

local ocsp = { version = tools.version }

-- Bytes of a text, where nothing else is said.
local MOST = 4096

function ocsp.get_ocsp_responder_from_der_chain(chain, most)
    local address, why = finish(raw.ocsp_responder(chain))
    if address and #address > (most or MOST) then
        return address:sub(1, most or MOST), "truncated"
    end
    return address, why
end

function ocsp.create_ocsp_request(chain, most)
    local question, why = finish(raw.ocsp_question(chain))
    if question and #question > (most or MOST) then
        return nil, "output buffer too small: " .. #question .. " > " .. (most or MOST)
    end
    return question, why
end

function ocsp.validate_ocsp_response(answer, chain, most)
    local ok, more = finish(raw.ocsp_check(answer, chain))
    if not ok and more and most then
        more = more:sub(1, most)
    end
    return ok, more
end

function ocsp.set_ocsp_status_resp(answer)
    return finish(raw.ocsp_staple(answer))
end

return ocsp
