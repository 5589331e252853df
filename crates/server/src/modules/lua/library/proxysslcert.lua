-- `ngx.ssl.proxysslcert`: the certificate that is shown to a peer.
local tools = ...
local raw, checked = tools.raw, tools.checked

return {
    version = tools.version,
    clear_certs = checked(raw.ssl_clear_certs),
    set_der_cert = checked(raw.ssl_set_cert),
    set_der_priv_key = checked(raw.ssl_set_key),
    set_cert = checked(raw.ssl_set_cert),
    set_priv_key = checked(raw.ssl_set_key),
}
