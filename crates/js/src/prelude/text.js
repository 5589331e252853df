// TextEncoder and TextDecoder (UTF-8), and the module `querystring`.
const raw = import.meta.raw;

class TextEncoder {
    get encoding() {
        return 'utf-8';
    }
    encode(text) {
        return new Uint8Array(raw.decode(text === undefined ? '' : String(text), 'utf8'));
    }
    encodeInto(text, into) {
        if (!(into instanceof Uint8Array)) {
            throw new TypeError('The "destination" argument must be an instance of Uint8Array');
        }
        let [read, written] = [0, 0];
        for (const letter of String(text)) {
            const bytes = this.encode(letter);
            if (written + bytes.length > into.length) {
                break;
            }
            into.set(bytes, written);
            written += bytes.length;
            read += letter.length;
        }
        return { read, written };
    }
    get [Symbol.toStringTag]() {
        return 'TextEncoder';
    }
}

class TextDecoder {
    #fatal;
    #ignoreBOM;
    #rest = new Uint8Array(0);
    #begun = false;
    constructor(label = 'utf-8', options = {}) {
        if (!/^\s*(utf-?8|unicode-1-1-utf-8)\s*$/i.test(label)) {
            throw new RangeError(`The "${label}" encoding is not supported`);
        }
        this.#fatal = Boolean(options.fatal);
        this.#ignoreBOM = Boolean(options.ignoreBOM);
    }
    get encoding() {
        return 'utf-8';
    }
    get fatal() {
        return this.#fatal;
    }
    get ignoreBOM() {
        return this.#ignoreBOM;
    }
    decode(data, options = {}) {
        let bytes;
        if (data === undefined) {
            bytes = new Uint8Array(0);
        } else if (data instanceof ArrayBuffer) {
            bytes = new Uint8Array(data);
        } else if (ArrayBuffer.isView(data)) {
            bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        } else {
            throw new TypeError('The "input" argument must be an instance of TypedArray');
        }
        if (this.#rest.length > 0) {
            const all = new Uint8Array(this.#rest.length + bytes.length);
            all.set(this.#rest);
            all.set(bytes, this.#rest.length);
            bytes = all;
        }
        const stream = Boolean(options.stream);
        const [text, left] = raw.utf8(bytes, this.#fatal, stream);
        this.#rest = stream ? bytes.slice(bytes.length - left) : new Uint8Array(0);
        const skip = !this.#begun && !this.#ignoreBOM && text.charCodeAt(0) === 0xfeff;
        this.#begun = stream && (this.#begun || text.length > 0);
        return skip ? text.slice(1) : text;
    }
    get [Symbol.toStringTag]() {
        return 'TextDecoder';
    }
}

Object.defineProperty(globalThis, 'TextEncoder', { value: TextEncoder, writable: true, configurable: true });
Object.defineProperty(globalThis, 'TextDecoder', { value: TextDecoder, writable: true, configurable: true });

const MAX_KEYS = 1000;
const unescape = (text) => raw.unescape(String(text));
const escape = (text) => encodeURIComponent(String(text).toWellFormed());

function parse(text, separator, equals, options) {
    const out = Object.create(Object.prototype);
    const sep = separator ? String(separator) : '&';
    const eq = equals ? String(equals) : '=';
    const decode = options?.decodeURIComponent ?? querystring.unescape;
    if (typeof decode !== 'function') {
        throw new TypeError('option decodeURIComponent is not a function');
    }
    const most = options?.maxKeys ?? MAX_KEYS;
    if (typeof text !== 'string' || text.length === 0) {
        return out;
    }
    let count = 0;
    for (const part of text.split(sep)) {
        if (most > 0 && count++ >= most) {
            break;
        }
        if (part.length === 0) {
            continue;
        }
        const at = part.indexOf(eq);
        const plain = (given) => decode(given.replaceAll('+', ' '));
        const key = plain(at < 0 ? part : part.slice(0, at));
        const value = at < 0 ? '' : plain(part.slice(at + eq.length));
        if (Object.hasOwn(out, key)) {
            if (Array.isArray(out[key])) {
                out[key].push(value);
            } else {
                out[key] = [out[key], value];
            }
        } else {
            Object.defineProperty(out, key, { value, writable: true, enumerable: true, configurable: true });
        }
    }
    return out;
}

function stringify(object, separator, equals, options) {
    const sep = separator ? String(separator) : '&';
    const eq = equals ? String(equals) : '=';
    const encode = options?.encodeURIComponent ?? querystring.escape;
    if (typeof encode !== 'function') {
        throw new TypeError('option encodeURIComponent is not a function');
    }
    if (typeof object !== 'object' || object === null) {
        return '';
    }
    const text = (v) => {
        const plain = typeof v === 'string' || typeof v === 'boolean' || typeof v === 'bigint' || Number.isFinite(v);
        return plain ? encode(String(v)) : '';
    };
    const pairs = [];
    for (const key of Object.keys(object)) {
        const values = Array.isArray(object[key]) ? object[key] : [object[key]];
        for (const value of values) {
            pairs.push(`${encode(key)}${eq}${text(value)}`);
        }
    }
    return pairs.join(sep);
}

const querystring = { parse, decode: parse, stringify, encode: stringify, escape, unescape };
raw.modules.querystring = querystring;
