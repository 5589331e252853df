-- `ngx.ssl`: the handshake with a client, certificates and keys.
local tools = ...
local raw, checked = tools.raw, tools.checked
local error = error

local ssl = { version = tools.version, _VERSION = tools.version }

tools.add_versions(ssl, checked(raw.ssl_version))
ssl.clear_certs = checked(raw.ssl_clear_certs)
ssl.set_der_cert = checked(raw.ssl_set_cert)
ssl.set_der_priv_key = checked(raw.ssl_set_key)
ssl.set_cert = checked(raw.ssl_set_cert)
ssl.set_priv_key = checked(raw.ssl_set_key)
ssl.cert_pem_to_der = checked(raw.ssl_pem_to_der)
ssl.priv_key_pem_to_der = checked(raw.ssl_key_to_der)
ssl.server_name = checked(raw.ssl_server_name)
ssl.server_port = checked(raw.ssl_server_port)
ssl.raw_server_addr = checked(raw.ssl_raw_server_addr)
ssl.raw_client_addr = checked(raw.ssl_raw_client_addr)
ssl.get_client_random = checked(raw.ssl_client_random)

local finish = tools.finish
function ssl.parse_pem_cert(text)
    return finish(raw.ssl_parse_cert(text, true))
end
function ssl.parse_der_cert(text)
    return finish(raw.ssl_parse_cert(text, false))
end
function ssl.parse_pem_priv_key(text)
    return finish(raw.ssl_parse_key(text, true))
end
function ssl.parse_der_priv_key(text)
    return finish(raw.ssl_parse_key(text, false))
end

function ssl.get_req_shared_ssl_ciphers(no_grease)
    return finish(raw.ssl_shared_ciphers(no_grease ~= false))
end

function ssl.verify_client(client_certs, depth, trusted_certs)
    return finish(raw.ssl_verify_client(client_certs, depth, trusted_certs))
end

-- Whoever has a pointer has it from an OpenSSL that the program brought along.
function ssl.ssl_session_reused(pointer)
    if not pointer or type(pointer) ~= "cdata" then
        return nil, "bad ssl"
    end
    return nil, "ngx.ssl.ssl_session_reused is not supported: there is no OpenSSL below; $ssl_session_reused says it"
end

local missing = {
    export_keying_material = "rustls exports none of the connections that it keeps without buffers",
    export_keying_material_early = "rustls exports none of the connections that it keeps without buffers",
    get_req_ssl_pointer = "there is no OpenSSL below",
    get_upstream_ssl_pointer = "there is no OpenSSL below",
    get_server_random = "rustls does not show it",
    get_session_master_key = "rustls does not show it",
}
for name, why in pairs(missing) do
    ssl[name] = function()
        return nil, "ngx.ssl." .. name .. " is not supported: " .. why
    end
end

return ssl
