// `r`: a request, as njs has it. What it does is in `raw.r_*`, which works on the request that the program runs for.
const raw = import.meta.raw;
const FIELDS = { uri: 0, method: 1, requestLine: 2, remoteAddress: 3, httpVersion: 4 };
const [ERR, WARN, INFO] = [4, 5, 7];
const MAX_ARGS = 10000;

const bytes = (value) => ArrayBuffer.isView(value) || value instanceof ArrayBuffer ? value : String(value);
const text = (value) => value === undefined || value === null ? '' : bytes(value);
const integer = (value) => {
    const number = Number(value);
    if (!Number.isFinite(number)) {
        throw new TypeError('invalid number');
    }
    if (Math.abs(number) > Number.MAX_SAFE_INTEGER) {
        throw new RangeError('number is out of range');
    }
    return Math.trunc(number);
};

// A view of names and values that are elsewhere.
function view(has) {
    return new Proxy(Object.create(null), {
        get: (_, name) => typeof name === 'string' ? has.get(name) : undefined,
        has: (_, name) => typeof name === 'string' && has.get(name) !== undefined,
        ownKeys: () => has.names(),
        getOwnPropertyDescriptor: (_, name) => {
            const value = typeof name === 'string' ? has.get(name) : undefined;
            return value === undefined ? undefined : { value, enumerable: true, configurable: true, writable: true };
        },
        set: (_, name, value) => has.set(String(name), value),
        defineProperty: (_, name, described) => has.set(String(name), described.value),
        deleteProperty: (_, name) => has.set(String(name), undefined),
    });
}
const refuse = (what) => () => {
    throw new TypeError(`Cannot assign to read-only property of ${what}`);
};

const headersIn = view({ get: raw.r_header_in, names: raw.r_header_in_names, set: refuse('headersIn') });
const headersOut = view({
    get: raw.r_header_out,
    names: raw.r_header_out_names,
    set: (name, value) => {
        const list = value === undefined || value === null ? [] : Array.isArray(value) ? value : [value];
        raw.r_set_header_out(name, list.filter((v) => v !== undefined && v !== null).map(bytes));
        return true;
    },
});
const variables = (get, list) => view({
    get,
    names: () => list(undefined),
    set: (name, value) => {
        raw.set_variable(name, text(value));
        return true;
    },
});
raw.lazy(raw, 'form_of', 'njs:form');
raw.lazy(raw, 'session', 'njs:stream');
raw.lazy(raw, 's_phase', 'njs:stream');
raw.variables = variables((name) => raw.variable(name, false), raw.variable_names);
raw.rawVariables = variables((name) => {
    const found = raw.variable(name, true);
    return found === undefined ? undefined : raw.wrap(found);
}, raw.variable_names);

raw.parseArgs = (given) => {
    const out = Object.create(Object.prototype);
    let count = 0;
    for (const part of given.split('&')) {
        const at = part.indexOf('=');
        const name = at < 0 ? part : part.slice(0, at);
        if (name === '' || count++ >= MAX_ARGS) {
            continue;
        }
        const plain = (v) => raw.unescape(v.replaceAll('+', ' '));
        const [key, value] = [plain(name), at < 0 ? '' : plain(part.slice(at + 1))];
        if (!Object.hasOwn(out, key)) {
            Object.defineProperty(out, key, { value, writable: true, enumerable: true, configurable: true });
        } else if (Array.isArray(out[key])) {
            out[key].push(value);
        } else {
            out[key] = [out[key], value];
        }
    }
    return out;
};

let args;
let read;
let form;
let parent;

let reading = false;
async function readBody() {
    if (reading) {
        throw new TypeError('request body is already being read');
    }
    reading = true;
    try {
        await (raw.r_body_is_read() ? undefined : raw.promise(raw.r_read_body()));
    } finally {
        reading = false;
    }
}
const readAs = (shown) => async () => {
    await readBody();
    return shown(raw.r_body(true) ?? new ArrayBuffer(0));
};

class HttpRequest {
    get args() {
        args ??= raw.parseArgs(raw.r_args());
        return args;
    }
    get headersIn() {
        return headersIn;
    }
    get headersOut() {
        return headersOut;
    }
    get rawHeadersIn() {
        return raw.r_raw_headers(false);
    }
    get rawHeadersOut() {
        return raw.r_raw_headers(true);
    }
    get variables() {
        return raw.variables;
    }
    get rawVariables() {
        return raw.rawVariables;
    }
    get internal() {
        return raw.r_internal();
    }
    get parent() {
        if (parent === undefined && raw.r_has_parent()) {
            parent = parentRequest();
        }
        return parent;
    }
    get requestText() {
        return raw.r_body(false);
    }
    get requestBuffer() {
        if (read === undefined) {
            const found = raw.r_body(true);
            read = found === undefined ? undefined : raw.wrap(found);
        }
        return read;
    }
    get responseText() {
        return undefined;
    }
    get responseBuffer() {
        return undefined;
    }
    get status() {
        return raw.r_status();
    }
    set status(value) {
        raw.r_set_status(integer(value));
    }
    return(status, body) {
        const code = integer(status);
        if (code < 0 || code > 999) {
            throw new RangeError('code is out of range');
        }
        const given = body !== undefined && body !== null;
        raw.r_return(code, text(body), given);
    }
    decline() {
        raw.r_decline();
    }
    send(...parts) {
        for (const part of parts) {
            raw.r_send(text(part));
        }
    }
    sendHeader() {
        raw.r_send_header();
    }
    sendBuffer(data, flags) {
        const last = typeof flags === 'object' && flags !== null ? Boolean(flags.last) : undefined;
        raw.r_send_buffer(text(data), last);
    }
    done() {
        raw.r_done();
    }
    finish() {
        raw.r_finish();
    }
    internalRedirect(uri) {
        raw.r_redirect(text(uri));
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
    subrequest(uri, second, third) {
        return subrequest(this, uri, second, third);
    }
    get [Symbol.toStringTag]() {
        return 'Request';
    }
}
for (const [name, number] of Object.entries(FIELDS)) {
    Object.defineProperty(HttpRequest.prototype, name, {
        get: () => raw.r_text(number), enumerable: true, configurable: true,
    });
}
Object.assign(HttpRequest.prototype, {
    readRequestText: readAs((body) => raw.encode(body, 'utf8')),
    readRequestArrayBuffer: readAs((body) => body),
    readRequestJSON: readAs((body) => JSON.parse(raw.encode(body, 'utf8'))),
    async readRequestForm(options) {
        if (form === undefined) {
            await readBody();
            form = raw.form_of(raw.r_body(true) ?? new ArrayBuffer(0), raw.r_header_in('Content-Type'), options);
        }
        return form;
    },
});

// The request whose program waits for this subrequest. It has a context of its own, so this is a view: each call works on that request.
const inParent = (work) => raw.r_in_parent(work);
const viewInParent = (inner) => {
    const on = (name) => (_, ...given) => inParent(() => Reflect[name](inner, ...given));
    return new Proxy(Object.create(null), {
        get: on('get'), has: on('has'), ownKeys: on('ownKeys'), set: on('set'), deleteProperty: on('deleteProperty'),
        getOwnPropertyDescriptor: on('getOwnPropertyDescriptor'), defineProperty: on('defineProperty'),
    });
};
const VIEWS = ['headersIn', 'headersOut', 'variables', 'rawVariables'];
// What its own program alone can wait for, or give back.
const ITS_OWN = [
    'subrequest', 'setReturnValue', 'readRequestText', 'readRequestArrayBuffer', 'readRequestJSON', 'readRequestForm',
];
function parentRequest() {
    const target = new HttpRequest();
    let query;
    return new Proxy(target, {
        get: (_, name) => {
            if (VIEWS.includes(name)) {
                return viewInParent(target[name]);
            }
            if (ITS_OWN.includes(name)) {
                return () => {
                    throw new TypeError(`"${name}" of a parent request is for its own program`);
                };
            }
            if (name === 'parent') {
                // Only a client's own request has subrequests that programs wait for.
                return undefined;
            }
            if (name === 'args') {
                query ??= raw.parseArgs(inParent(raw.r_args));
                return query;
            }
            if (name === 'requestBuffer') {
                const body = inParent(() => raw.r_body(true));
                return body === undefined ? undefined : raw.wrap(body);
            }
            const found = inParent(() => target[name]);
            return typeof found === 'function' ? (...given) => inParent(() => found.apply(target, given)) : found;
        },
        set: (_, name, value) => inParent(() => Reflect.set(target, name, value)),
    });
}

function texts(value, what) {
    if (value === undefined || value === null) {
        return '';
    }
    try {
        return bytes(value);
    } catch {
        throw new TypeError(`failed to convert ${what}`);
    }
}

function subrequest(r, uri, second, third) {
    if (!raw.r_is_main()) {
        throw new TypeError('subrequest can only be created for the primary request');
    }
    const to = texts(uri, 'uri arg');
    if (to.length === 0) {
        throw new TypeError('uri is empty');
    }
    let [query, callback, options] = ['', undefined, {}];
    if (typeof second === 'string') {
        query = second;
    } else if (typeof second === 'function') {
        callback = second;
    } else if (typeof second === 'object' && second !== null) {
        options = second;
    } else if (second !== undefined && second !== null) {
        throw new TypeError('failed to convert args');
    }
    if (options.args !== undefined) {
        query = texts(options.args, 'options.args');
    }
    const method = options.method === undefined ? '' : texts(options.method, 'option.method');
    const body = options.body === undefined ? undefined : texts(options.body, 'options.body');
    const detached = Boolean(options.detached);
    if (callback === undefined && third !== undefined && third !== null) {
        if (typeof third !== 'function') {
            throw new TypeError('callback is not a function');
        }
        callback = third;
    }
    if (detached && callback !== undefined) {
        throw new TypeError('detached flag and callback are mutually exclusive');
    }
    const id = raw.r_subrequest(to, query, method, body ?? '', body !== undefined, detached);
    if (detached) {
        return undefined;
    }
    if (callback !== undefined) {
        raw.later(id, (found) => callback(new Reply(r, found)));
        return undefined;
    }
    return raw.promise(id).then((found) => new Reply(r, found));
}

// A subrequest's answer.
class Reply {
    #parent;
    #found;
    #headers;
    constructor(parent, found) {
        this.#parent = parent;
        const [status, uri, method, query, headers, body] = found;
        this.#found = { status, uri, method, query, headers, body };
    }
    get status() {
        return this.#found.status;
    }
    get uri() {
        return this.#found.uri;
    }
    get method() {
        return this.#found.method;
    }
    get args() {
        return raw.parseArgs(this.#found.query);
    }
    get responseText() {
        return this.#found.body === undefined ? undefined : raw.encode(this.#found.body, 'utf8');
    }
    get responseBuffer() {
        return this.#found.body === undefined ? undefined : raw.wrap(this.#found.body);
    }
    get rawHeadersOut() {
        return this.#found.headers;
    }
    get headersOut() {
        if (this.#headers === undefined) {
            const out = Object.create(null);
            const keys = new Map();
            for (const [name, value] of this.#found.headers) {
                const key = keys.get(name.toLowerCase()) ?? name;
                keys.set(name.toLowerCase(), key);
                if (key.toLowerCase() === 'set-cookie') {
                    (out[key] ??= []).push(value);
                } else {
                    out[key] = out[key] === undefined ? value : `${out[key]}, ${value}`;
                }
            }
            this.#headers = new Proxy(out, {
                get: (o, name) => typeof name === 'string' ? o[keys.get(name.toLowerCase())] : undefined,
                has: (_, name) => typeof name === 'string' && keys.has(name.toLowerCase()),
            });
        }
        return this.#headers;
    }
    get parent() {
        return this.#parent;
    }
    get headersIn() {
        return this.#parent.headersIn;
    }
    get rawHeadersIn() {
        return this.#parent.rawHeadersIn;
    }
    get variables() {
        return this.#parent.variables;
    }
    get rawVariables() {
        return this.#parent.rawVariables;
    }
    get httpVersion() {
        return this.#parent.httpVersion;
    }
    get remoteAddress() {
        return this.#parent.remoteAddress;
    }
    get internal() {
        return true;
    }
    subrequest() {
        throw new TypeError('subrequest can only be created for the primary request');
    }
    error(...values) {
        this.#parent.error(...values);
    }
    warn(...values) {
        this.#parent.warn(...values);
    }
    log(...values) {
        this.#parent.log(...values);
    }
    get [Symbol.toStringTag]() {
        return 'Request';
    }
}

// A turn of `js_periodic`.
class PeriodicSession {
    get variables() {
        return raw.variables;
    }
    get rawVariables() {
        return raw.rawVariables;
    }
    get [Symbol.toStringTag]() {
        return 'PeriodicSession';
    }
}

let request;
raw.request = () => request ??= new HttpRequest();
raw.periodic = () => new PeriodicSession();
raw.forget = () => {
    [args, read, form, parent, request] = [];
    reading = false;
    raw.forget_session?.();
};
