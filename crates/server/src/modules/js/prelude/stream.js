// `s`: a session of `stream`, as njs has it.
const raw = import.meta.raw;
const [ERR, WARN, INFO] = [4, 5, 7];
const [ALLOW, DECLINE, DENY] = [0, -5, 403];
const text = (value) => value === undefined || value === null ? ''
    : ArrayBuffer.isView(value) || value instanceof ArrayBuffer ? value : String(value);
const EVENTS = { upload: [false, false], download: [true, false], upstream: [false, true], downstream: [true, true] };
let session;
let handlers = [undefined, undefined];
// What a filter's handler is called with now: from where it comes.
let now;

class StreamSession {
    get remoteAddress() {
        return raw.r_text(3);
    }
    get variables() {
        return raw.variables;
    }
    get rawVariables() {
        return raw.rawVariables;
    }
    get status() {
        return raw.s_status();
    }
    allow() {
        raw.s_done(ALLOW);
    }
    decline() {
        raw.s_done(DECLINE);
    }
    deny() {
        raw.s_done(DENY);
    }
    done(code) {
        if (code === undefined) {
            raw.s_done(ALLOW);
            return;
        }
        const number = Number(code);
        if (!Number.isFinite(number)) {
            throw new TypeError('invalid number');
        }
        if (number < -5 || number > 599) {
            throw new RangeError('code is out of range');
        }
        raw.s_done(Math.trunc(number));
    }
    on(event, run) {
        if (typeof run !== 'function') {
            throw new TypeError('callback is not a function');
        }
        const found = Object.hasOwn(EVENTS, event) ? EVENTS[event] : undefined;
        if (found === undefined) {
            throw new TypeError(`unknown event "${event}"`);
        }
        const at = Number(found[0]);
        if (handlers[at] !== undefined) {
            throw new TypeError(`event handler "${event}" is already set`);
        }
        const other = handlers[1 - at];
        if (other !== undefined && other.bytes !== found[1]) {
            throw new TypeError('mixing string and buffer events is not allowed');
        }
        handlers[at] = { run, bytes: found[1] };
        raw.s_listens(handlers[0] !== undefined, handlers[1] !== undefined);
    }
    off(event) {
        const found = Object.hasOwn(EVENTS, event) ? EVENTS[event] : undefined;
        if (found === undefined) {
            throw new TypeError(`unknown event "${event}"`);
        }
        handlers[Number(found[0])] = undefined;
        raw.s_listens(handlers[0] !== undefined, handlers[1] !== undefined);
    }
    send(data, flags) {
        // After a wait the flags still know which way it goes.
        const way = now ?? flags?.from_upstream;
        if (way === undefined) {
            throw new TypeError('cannot send buffer in this handler');
        }
        raw.s_send(Boolean(way), text(data), Boolean(flags?.last));
    }
    sendDownstream(data, flags) {
        raw.s_send(true, text(data), Boolean(flags?.last));
    }
    sendUpstream(data, flags) {
        raw.s_send(false, text(data), Boolean(flags?.last));
    }
    setReturnValue(value) {
        raw.setReturnValue(value);
    }
    error(...values) {
        values.forEach((v) => raw.log(ERR, raw.inspect(v)));
    }
    warn(...values) {
        values.forEach((v) => raw.log(WARN, raw.inspect(v)));
    }
    log(...values) {
        values.forEach((v) => raw.log(INFO, raw.inspect(v)));
    }
    jsVarNames(prefix) {
        if (prefix !== undefined && typeof prefix !== 'string') {
            throw new TypeError('"prefix" must be a string');
        }
        return raw.js_var_names(prefix ?? '');
    }
    get [Symbol.toStringTag]() {
        return 'Stream Session';
    }
}

raw.session = () => session ??= new StreamSession();
// Handlers of a phase are not those of the next.
raw.s_phase = () => {
    handlers = [undefined, undefined];
};
raw.s_event = (fromUpstream, data, last, filters) => {
    const handler = handlers[Number(fromUpstream)];
    if (handler === undefined) {
        return false;
    }
    now = filters ? fromUpstream : undefined;
    try {
        handler.run(handler.bytes ? raw.wrap(data) : raw.encode(data, 'utf8'), { last, from_upstream: fromUpstream });
    } finally {
        now = undefined;
    }
    return true;
};
raw.forget_session = () => {
    [session, now] = [];
    handlers = [undefined, undefined];
};
