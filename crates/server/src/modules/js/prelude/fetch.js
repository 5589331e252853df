// `fetch`, and what it takes and gives: Headers, Request, Response.
const raw = import.meta.raw;
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

function headerName(name) {
    const given = String(name);
    if (!TOKEN.test(given)) {
        throw new TypeError('invalid header name');
    }
    return given;
}
function headerValue(value) {
    const given = String(value).replace(/^[\t ]+|[\t ]+$/g, '');
    // eslint-disable-next-line no-control-regex
    if (/[\x00-\x08\x0a-\x1f\x7f]/.test(given)) {
        throw new TypeError('invalid header value');
    }
    return given;
}

const ofHeaders = (self) => {
    if (typeof self !== 'object' || self === null || !Headers.is(self)) {
        throw new TypeError('"this" is not fetch headers object');
    }
    return self;
};
class Headers {
    #list = [];
    #fixed = false;
    constructor(init) {
        if (init === undefined || init === null) {
            return this.#shown();
        }
        if (typeof init !== 'object') {
            throw new TypeError('invalid headers');
        }
        if (Headers.is(init)) {
            this.#list = Headers.pairs(init).map((pair) => [...pair]);
        } else if (Array.isArray(init)) {
            for (const pair of init) {
                if (!Array.isArray(pair) || pair.length !== 2) {
                    throw new TypeError('header does not contain exactly two elements');
                }
                this.append(pair[0], pair[1]);
            }
        } else {
            for (const name of Object.keys(init)) {
                this.append(name, init[name]);
            }
        }
        return this.#shown();
    }
    // Names can be read as properties, too.
    #shown() {
        const held = this;
        const shown = new Proxy(this, {
            get: (_, name) => {
                if (typeof name !== 'string' || name in Headers.prototype) {
                    return Headers.prototype[name];
                }
                return held.get(name) ?? undefined;
            },
            has: (_, name) => typeof name === 'string' && (held.has(name) || name in Headers.prototype),
            ownKeys: () => held.#names(),
            getOwnPropertyDescriptor: (_, name) => {
                const value = typeof name === 'string' && TOKEN.test(name) ? held.get(name) : null;
                return value === null ? undefined : { value, enumerable: true, configurable: true };
            },
        });
        KNOWN.set(shown, this);
        return shown;
    }
    static is(value) {
        return typeof value === 'object' && value !== null && (KNOWN.has(value) || #list in value);
    }
    static pairs(value) {
        return own(value).#list;
    }
    static fix(value) {
        own(value).#fixed = true;
        return value;
    }
    #names() {
        const seen = new Map();
        for (const [name] of own(this).#list) {
            seen.set(name.toLowerCase(), seen.get(name.toLowerCase()) ?? name);
        }
        return [...seen.values()];
    }
    #change() {
        if (own(this).#fixed) {
            throw new TypeError('cannot modify immutable object');
        }
    }
    append(name, value) {
        const self = own(ofHeaders(this));
        self.#change();
        self.#list.push([headerName(name), headerValue(value)]);
    }
    delete(name) {
        const self = own(ofHeaders(this));
        self.#change();
        const key = headerName(name).toLowerCase();
        self.#list = self.#list.filter(([n]) => n.toLowerCase() !== key);
    }
    set(name, value) {
        const self = own(ofHeaders(this));
        self.#change();
        const [key, given] = [headerName(name), headerValue(value)];
        const at = self.#list.findIndex(([n]) => n.toLowerCase() === key.toLowerCase());
        if (at < 0) {
            self.#list.push([key, given]);
            return;
        }
        const first = self.#list[at][0];
        self.#list = self.#list.filter(([n], i) => i === at || n.toLowerCase() !== key.toLowerCase());
        self.#list[self.#list.findIndex(([n]) => n === first)] = [first, given];
    }
    get(name) {
        const all = own(ofHeaders(this)).getAll(name);
        return all.length === 0 ? null : all.join(', ');
    }
    getAll(name) {
        const key = String(name).toLowerCase();
        return own(ofHeaders(this)).#list.filter(([n]) => n.toLowerCase() === key).map(([, v]) => v);
    }
    has(name) {
        return own(ofHeaders(this)).getAll(name).length > 0;
    }
    forEach(run, self) {
        if (typeof run !== 'function') {
            throw new TypeError('"callback" is not a function');
        }
        const found = own(ofHeaders(this));
        const names = found.#names().sort((a, b) => a.toLowerCase() < b.toLowerCase() ? -1 : 1);
        for (const name of names) {
            run.call(self, name, found.get(name));
        }
    }
    get [Symbol.toStringTag]() {
        return 'Headers';
    }
}
const KNOWN = new WeakMap();
const own = (headers) => KNOWN.get(headers) ?? headers;

const FORBIDDEN = ['CONNECT', 'TRACE', 'TRACK'];
const USUAL = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS'];
function methodOf(given) {
    const name = String(given);
    const upper = name.toUpperCase();
    if (FORBIDDEN.includes(upper)) {
        throw new TypeError(`forbidden method: ${name}`);
    }
    // eslint-disable-next-line no-control-regex
    if (name === '' || /[\x00-\x20\x7f]/.test(name)) {
        throw new TypeError('invalid Request method');
    }
    return USUAL.includes(upper) ? upper : name;
}
const CACHE = ['default', 'no-cache', 'no-store', 'reload', 'force-cache', 'only-if-cached'];
const CREDENTIALS = ['omit', 'include', 'same-origin'];
const MODES = ['same-origin', 'no-cors', 'cors', 'navigate', 'websocket'];
const oneOf = (all, value, usual, what) => {
    if (value === undefined) {
        return usual;
    }
    if (!all.includes(String(value))) {
        throw new TypeError(`unknown ${what} type: ${value}`);
    }
    return String(value);
};
const asBuffer = (value) => {
    if (value instanceof ArrayBuffer) {
        return value.slice(0);
    }
    if (ArrayBuffer.isView(value)) {
        return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice().buffer;
    }
    return raw.decode(String(value), 'utf8');
};

// What requests and answers have in common.
class Body {
    #bytes;
    #used = false;
    constructor(given) {
        this.#bytes = given;
    }
    get bodyUsed() {
        return this.#used;
    }
    #take() {
        if (this.#used) {
            throw new TypeError('body stream already read');
        }
        this.#used = true;
        return this.#bytes ?? new ArrayBuffer(0);
    }
    static peek(body) {
        return body.#bytes;
    }
    async arrayBuffer() {
        return this.#take();
    }
    async text() {
        return raw.encode(this.#take(), 'utf8');
    }
    async json() {
        return JSON.parse(raw.encode(this.#take(), 'utf8'));
    }
}

class Request extends Body {
    #facts;
    constructor(input, init) {
        if (input === undefined) {
            throw new TypeError('1st argument is required');
        }
        const from = input instanceof Request ? input : undefined;
        const options = init ?? {};
        const method = options.method === undefined ? from?.method ?? 'GET' : methodOf(options.method);
        const given = options.body ?? (from === undefined ? undefined : Body.peek(from));
        super(given === undefined || given === null ? undefined : asBuffer(given));
        const headers = new Headers(options.headers ?? from?.headers);
        if (typeof options.body === 'string' && !headers.has('Content-Type')) {
            headers.append('Content-Type', 'text/plain;charset=UTF-8');
        }
        // eslint-disable-next-line no-control-regex
        const url = from === undefined ? String(input).replace(/^[\x00-\x20]+|[\x00-\x20]+$/g, '') : from.url;
        this.#facts = {
            method, headers, url,
            cache: oneOf(CACHE, options.cache, from?.cache ?? 'default', 'cache'),
            credentials: oneOf(CREDENTIALS, options.credentials, from?.credentials ?? 'same-origin', 'credentials'),
            mode: oneOf(MODES, options.mode, from?.mode ?? 'no-cors', 'mode'),
        };
    }
    get url() {
        return this.#facts.url;
    }
    get method() {
        return this.#facts.method;
    }
    get headers() {
        return this.#facts.headers;
    }
    get cache() {
        return this.#facts.cache;
    }
    get credentials() {
        return this.#facts.credentials;
    }
    get mode() {
        return this.#facts.mode;
    }
    get [Symbol.toStringTag]() {
        return 'Request';
    }
}

class Response extends Body {
    #facts;
    constructor(body, init, mark, facts) {
        super(body === undefined || body === null ? undefined : mark === KNOWN ? body : asBuffer(body));
        if (mark === KNOWN) {
            this.#facts = facts;
            return;
        }
        const options = init ?? {};
        const status = options.status === undefined ? 200 : Number(options.status);
        if (!(status >= 200 && status <= 599)) {
            throw new RangeError(`status provided (${options.status}) is outside of [200, 599] range`);
        }
        const words = options.statusText === undefined ? '' : String(options.statusText);
        // eslint-disable-next-line no-control-regex
        if (/[\x00-\x08\x0a-\x1f\x7f]/.test(words)) {
            throw new TypeError('invalid Response statusText');
        }
        const headers = new Headers(options.headers);
        if (typeof body === 'string' && !headers.has('Content-Type')) {
            headers.append('Content-Type', 'text/plain;charset=UTF-8');
        }
        this.#facts = { status: Math.trunc(status), statusText: words, headers, url: '', type: 'default' };
    }
    get status() {
        return this.#facts.status;
    }
    get statusText() {
        return this.#facts.statusText;
    }
    get ok() {
        return this.status >= 200 && this.status < 300;
    }
    get headers() {
        return this.#facts.headers;
    }
    get redirected() {
        return false;
    }
    get type() {
        return this.#facts.type;
    }
    get url() {
        return this.#facts.url;
    }
    get [Symbol.toStringTag]() {
        return 'Response';
    }
}

async function fetch(input, init) {
    const request = input instanceof Request && init === undefined ? input : new Request(input, init);
    const options = init ?? {};
    const size = (value) => value === undefined ? -1 : Number(value);
    const list = Headers.pairs(request.headers).flat();
    const body = Body.peek(request);
    const verify = options.verify === undefined ? undefined : Boolean(options.verify);
    const sizes = [size(options.buffer_size), size(options.max_response_body_size)];
    const id = raw.fetch_begin(request.method, request.url, list, body, verify, sizes);
    const [status, statusText, pairs, content] = await raw.promise(id);
    const headers = new Headers();
    for (const [name, value] of pairs) {
        headers.append(name, value);
    }
    const facts = { status, statusText, headers: Headers.fix(headers), url: request.url, type: 'basic' };
    return new Response(content, undefined, KNOWN, facts);
}
for (const [name, made] of Object.entries({ Headers, Request, Response })) {
    Object.defineProperty(globalThis, name, { value: made, writable: true, configurable: true });
}
raw.ngx_fetch = fetch;
