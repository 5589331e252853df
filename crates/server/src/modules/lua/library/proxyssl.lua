-- `ngx.proxyssl`: the handshake with a peer.
local tools = ...
local raw, checked = tools.raw, tools.checked

local proxyssl = {
    version = tools.version,
    SSL3_VERSION = 0x0300, TLS1_VERSION = 0x0301, TLS1_1_VERSION = 0x0302, TLS1_2_VERSION = 0x0303, TLS1_3_VERSION = 0x0304,
    get_tls1_version = checked(raw.proxy_ssl_version),
}

local names = { [0x0300] = "SSLv3", [0x0301] = "TLSv1", [0x0302] = "TLSv1.1", [0x0303] = "TLSv1.2", [0x0304] = "TLSv1.3" }
function proxyssl.get_tls1_version_str()
    local version, text = proxyssl.get_tls1_version()
    if not version then
        return nil, text
    end
    local name = names[version]
    if not name then
        return nil, "unknown version"
    end
    return name
end

return proxyssl
