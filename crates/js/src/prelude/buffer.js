// Buffer: bytes with encodings, as njs has them.
const raw = import.meta.raw;
const MOST = 2147483647;

function encodingOf(given) {
    if (given === undefined || given === null || given === '') {
        return 'utf8';
    }
    const name = String(given).toLowerCase();
    switch (name) {
    case 'utf8': case 'utf-8': return 'utf8';
    case 'hex': case 'base64': case 'base64url': return name;
    default:
        throw new TypeError(`"${given}" encoding is not supported`);
    }
}
const bytesOf = (text, encoding) => new Uint8Array(raw.decode(text, encodingOf(encoding)));
const viewOf = (value) => value instanceof ArrayBuffer ? new Uint8Array(value)
    : new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
const isBytes = (value) => value instanceof ArrayBuffer || ArrayBuffer.isView(value);

function sizeOf(size) {
    if (typeof size !== 'number') {
        throw new TypeError('"size" argument must be of type number');
    }
    if (!(size >= 0 && size <= MOST)) {
        throw new RangeError('invalid size');
    }
    return Math.trunc(size);
}

class Buffer extends Uint8Array {
    static alloc(size, fill, encoding) {
        const made = new Buffer(sizeOf(size));
        return fill === undefined ? made : made.fill(fill, 0, made.length, encoding);
    }
    static allocUnsafe(size) {
        return new Buffer(sizeOf(size));
    }
    static byteLength(value, encoding) {
        if (isBytes(value)) {
            return value.byteLength;
        }
        if (typeof value !== 'string') {
            throw new TypeError('first argument is not a string or Buffer-like object');
        }
        return bytesOf(value, encoding).length;
    }
    static compare(a, b) {
        if (!(a instanceof Uint8Array) || !(b instanceof Uint8Array)) {
            throw new TypeError(`"${a instanceof Uint8Array ? 'target' : 'source'}" argument must be of type Buffer`);
        }
        return order(a, b);
    }
    static concat(list, length) {
        if (!Array.isArray(list)) {
            throw new TypeError('"list" argument must be an instance of Array');
        }
        const all = list.map((one, at) => {
            if (!ArrayBuffer.isView(one)) {
                throw new TypeError(`"list[${at}]" argument must be an instance of Buffer or Uint8Array`);
            }
            return viewOf(one);
        });
        const size = length === undefined ? all.reduce((sum, one) => sum + one.length, 0) : sizeOf(length);
        const out = new Buffer(size);
        let at = 0;
        for (const one of all) {
            const part = one.subarray(0, size - at);
            out.set(part, at);
            at += part.length;
        }
        return out;
    }
    static from(value, second, third) {
        if (typeof value === 'string') {
            return wrap(raw.decode(value, encodingOf(second)));
        }
        if (value instanceof ArrayBuffer) {
            return new Buffer(value, second === undefined ? 0 : second, third);
        }
        if (typeof value === 'object' && value !== null) {
            if (value.type === 'Buffer' && Array.isArray(value.data)) {
                return fromList(value.data);
            }
            if (value instanceof DataView) {
                return fromList(viewOf(value));
            }
            if (typeof value.length === 'number') {
                return fromList(value);
            }
            const primitive = value.valueOf();
            if (primitive !== value && typeof primitive === 'string') {
                return Buffer.from(primitive, second);
            }
        }
        throw new TypeError('first argument is not a string or Buffer-like object');
    }
    static isBuffer(value) {
        return value instanceof Buffer;
    }
    static isEncoding(name) {
        return typeof name === 'string' && /^(utf-?8|hex|base64|base64url)$/i.test(name);
    }
    static get [Symbol.species]() {
        return Buffer;
    }

    compare(other, from = 0, to = other?.length, ownFrom = 0, ownTo = this.length) {
        if (!(other instanceof Uint8Array)) {
            throw new TypeError('"target" argument must be an instance of Buffer or Uint8Array');
        }
        range(from, 0, other.length, 'targetStart');
        range(to, 0, other.length, 'targetEnd');
        range(ownFrom, 0, this.length, 'sourceStart');
        range(ownTo, 0, this.length, 'sourceEnd');
        return order(this.subarray(ownFrom, ownTo), other.subarray(from, to));
    }
    copy(target, at = 0, from = 0, to = this.length) {
        if (!(target instanceof Uint8Array)) {
            throw new TypeError('"target" argument must be an instance of Buffer or Uint8Array');
        }
        range(from, 0, this.length, 'sourceStart');
        if (at >= target.length || from >= to) {
            return 0;
        }
        const part = Uint8Array.prototype.subarray.call(this, from, Math.min(to, from + target.length - at));
        target.set(part, at);
        return part.length;
    }
    equals(other) {
        if (!(other instanceof Uint8Array)) {
            throw new TypeError('"target" argument must be an instance of Buffer or Uint8Array');
        }
        return order(this, other) === 0;
    }
    fill(value, from, to, encoding) {
        if (typeof from === 'string') {
            [from, to, encoding] = [0, this.length, from];
        } else if (typeof to === 'string') {
            [to, encoding] = [this.length, to];
        }
        from ??= 0;
        to ??= this.length;
        range(from, 0, this.length, 'offset');
        range(to, 0, this.length, 'end');
        let bytes;
        if (typeof value === 'string') {
            bytes = bytesOf(value, encoding);
        } else if (isBytes(value)) {
            bytes = viewOf(value).slice();
        } else {
            return super.fill(Number(value) & 255, from, to);
        }
        if (bytes.length === 0) {
            return super.fill(0, from, to);
        }
        for (let at = from; at < to; at += bytes.length) {
            this.set(bytes.subarray(0, Math.min(bytes.length, to - at)), at);
        }
        return this;
    }
    includes(value, from, encoding) {
        return this.indexOf(value, from, encoding) !== -1;
    }
    indexOf(value, from, encoding) {
        return find(this, value, from, encoding, false);
    }
    lastIndexOf(value, from, encoding) {
        return find(this, value, from, encoding, true);
    }
    slice(from, to) {
        return this.subarray(from, to);
    }
    swap16() {
        return swap(this, 2);
    }
    swap32() {
        return swap(this, 4);
    }
    swap64() {
        return swap(this, 8);
    }
    toJSON() {
        return { type: 'Buffer', data: Array.from(this) };
    }
    toString(encoding, from = 0, to = this.length) {
        const name = encodingOf(encoding);
        from = Math.min(Math.max(Number(from) || 0, 0), this.length);
        to = Math.min(Math.max(Number(to) || 0, 0), this.length);
        return from >= to ? '' : raw.encode(this.subarray(from, to), name);
    }
    write(text, at, length, encoding) {
        if (typeof text !== 'string') {
            throw new TypeError('first argument must be a string');
        }
        if (typeof at === 'string') {
            [at, length, encoding] = [0, undefined, at];
        } else if (typeof length === 'string') {
            [length, encoding] = [undefined, length];
        }
        at ??= 0;
        range(at, 0, this.length, 'offset');
        let bytes = bytesOf(text, encoding);
        let room = Math.min(length ?? Infinity, this.length - at);
        if (encodingOf(encoding) === 'utf8') {
            // No letter is cut.
            while (room > 0 && room < bytes.length && (bytes[room] & 0xc0) === 0x80) {
                room--;
            }
        }
        bytes = bytes.subarray(0, room);
        this.set(bytes, at);
        return bytes.length;
    }
}

function wrap(buffer) {
    return new Buffer(buffer);
}
raw.wrap = wrap;

function fromList(list) {
    const out = new Buffer(list.length);
    for (let i = 0; i < list.length; i++) {
        out[i] = Number(list[i]);
    }
    return out;
}

function order(a, b) {
    const shorter = Math.min(a.length, b.length);
    for (let i = 0; i < shorter; i++) {
        if (a[i] !== b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return Math.sign(a.length - b.length);
}

function range(value, from, to, name) {
    if (!(Number(value) >= from && Number(value) <= to)) {
        throw new RangeError(`"${name}" is out of range: ${value}`);
    }
}

function find(own, value, from, encoding, last) {
    if (typeof from === 'string') {
        [from, encoding] = [undefined, from];
    }
    let bytes;
    if (typeof value === 'string') {
        bytes = bytesOf(value, encoding);
    } else if (typeof value === 'number') {
        bytes = Uint8Array.of(value & 255);
    } else if (isBytes(value)) {
        bytes = viewOf(value);
    } else {
        throw new TypeError('"value" argument is not a string or Buffer-like object');
    }
    const farthest = own.length - bytes.length;
    let at = from === undefined || Number.isNaN(Number(from)) ? (last ? farthest : 0) : Math.trunc(Number(from));
    at = at < 0 ? at + own.length : at;
    const same = (place) => bytes.every((b, i) => own[place + i] === b);
    if (last) {
        for (at = Math.min(at, farthest); at >= 0; at--) {
            if (same(at)) {
                return at;
            }
        }
        return -1;
    }
    for (at = Math.max(at, 0); at <= farthest; at++) {
        if (same(at)) {
            return at;
        }
    }
    return -1;
}

function swap(own, size) {
    if (own.length % size !== 0) {
        throw new RangeError(`Buffer size must be a multiple of ${size * 8}-bits`);
    }
    for (let at = 0; at < own.length; at += size) {
        Uint8Array.prototype.subarray.call(own, at, at + size).reverse();
    }
    return own;
}

// readInt8 ... writeDoubleBE, by DataView.
const view = (own) => new DataView(own.buffer, own.byteOffset, own.byteLength);
function place(own, at, size) {
    at = at === undefined ? 0 : at;
    if (typeof at !== 'number' || !Number.isInteger(at)) {
        throw new TypeError('"offset" argument must be an integer');
    }
    if (at < 0 || at + size > own.length) {
        throw new RangeError('index is out of bounds');
    }
    return at;
}
function limits(value, low, high) {
    if (value < low || value > high) {
        throw new RangeError('"value" is out of range');
    }
    return value;
}
const define = (name, run) => {
    Object.defineProperty(Buffer.prototype, name, { value: run, writable: true, configurable: true });
};
const kinds = [
    ['Int', 1, 'Int8'], ['UInt', 1, 'Uint8'], ['Int', 2, 'Int16'], ['UInt', 2, 'Uint16'],
    ['Int', 4, 'Int32'], ['UInt', 4, 'Uint32'], ['Float', 4, 'Float32'], ['Double', 8, 'Float64'],
    ['BigInt', 8, 'BigInt64'], ['BigUInt', 8, 'BigUint64'],
];
for (const [name, size, getter] of kinds) {
    const isFloat = name === 'Float' || name === 'Double';
    const isBig = name.startsWith('Big');
    const bits = isFloat ? '' : size * 8;
    const signed = name === 'Int' || name === 'BigInt';
    const [low, high] = isBig ? (signed ? [-(2n ** 63n), 2n ** 63n - 1n] : [0n, 2n ** 64n - 1n])
        : signed ? [-(2 ** (size * 8 - 1)), 2 ** (size * 8 - 1) - 1] : [0, 2 ** (size * 8) - 1];
    for (const little of size === 1 ? [undefined] : [true, false]) {
        const end = little === undefined ? '' : little ? 'LE' : 'BE';
        const read = function (at) {
            return view(this)[`get${getter}`](place(this, at, size), little);
        };
        const write = function (value, at) {
            const given = isBig ? BigInt(value) : Number(value);
            view(this)[`set${getter}`](place(this, at, size), isFloat ? given : limits(given, low, high), little);
            return (at ?? 0) + size;
        };
        define(`read${name}${bits}${end}`, read);
        define(`write${name}${bits}${end}`, write);
        if (name.includes('UInt')) {
            define(`read${name.replace('UInt', 'Uint')}${bits}${end}`, read);
            define(`write${name.replace('UInt', 'Uint')}${bits}${end}`, write);
        }
    }
}
function checkSize(size) {
    if (!(Number.isInteger(size) && size >= 1 && size <= 6)) {
        throw new RangeError('"byteLength" must be >= 1 and <= 6');
    }
}
for (const little of [true, false]) {
    const end = little ? 'LE' : 'BE';
    for (const signed of [true, false]) {
        const read = function (at, size) {
            checkSize(size);
            at = place(this, at, size);
            let value = 0;
            for (let i = 0; i < size; i++) {
                value = value * 256 + this[at + (little ? size - 1 - i : i)];
            }
            return signed && value >= 2 ** (size * 8 - 1) ? value - 2 ** (size * 8) : value;
        };
        const write = function (value, at, size) {
            checkSize(size);
            at = place(this, at, size);
            const bits = size * 8;
            const [low, high] = signed ? [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] : [0, 2 ** bits - 1];
            let left = limits(Number(value), low, high);
            left = left < 0 ? left + 2 ** bits : left;
            for (let i = 0; i < size; i++) {
                this[at + (little ? i : size - 1 - i)] = left % 256;
                left = Math.floor(left / 256);
            }
            return at + size;
        };
        for (const name of signed ? ['Int'] : ['UInt', 'Uint']) {
            define(`read${name}${end}`, read);
            define(`write${name}${end}`, write);
        }
    }
}

Object.defineProperty(globalThis, 'Buffer', { value: Buffer, writable: true, configurable: true });
raw.modules.buffer = {
    Buffer, kMaxLength: MOST, kStringMaxLength: MOST, constants: { MAX_LENGTH: MOST, MAX_STRING_LENGTH: MOST },
};
