-- `ngx.proxyssl`: the handshake with a peer.
local tools = ...

local proxyssl = { version = tools.version }
tools.add_versions(proxyssl, tools.checked(tools.raw.proxy_ssl_version))
return proxyssl
