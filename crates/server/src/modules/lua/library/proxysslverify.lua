-- `ngx.ssl.proxysslverify`: what to think of a peer's certificate.
local tools = ...
local raw, checked = tools.raw, tools.checked

return {
    version = tools.version,
    get_verify_result = checked(raw.proxy_ssl_result),
    set_verify_result = checked(raw.proxy_ssl_set_result),
    get_verify_cert = checked(raw.proxy_ssl_cert),
}
