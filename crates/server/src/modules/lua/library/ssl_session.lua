-- `ngx.ssl.session`: sessions of clients, as programs keep them.
local tools = ...
local raw, checked = tools.raw, tools.checked

return {
    version = tools.version,
    get_session_id = checked(raw.session_id),
    get_serialized_session = checked(raw.session_value),
    set_serialized_session = checked(raw.session_give),
}
