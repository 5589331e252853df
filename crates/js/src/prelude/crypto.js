// The module `crypto` (createHash, createHmac) and WebCrypto. What computes is `raw.digest` and its like.
const raw = import.meta.raw;
const Buffer = globalThis.Buffer;

const bytesOf = (value, what) => {
    if (value instanceof ArrayBuffer) {
        return new Uint8Array(value);
    }
    if (ArrayBuffer.isView(value)) {
        return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    }
    if (typeof value === 'string') {
        return new Uint8Array(raw.decode(value, 'utf8'));
    }
    throw new TypeError(`${what} is not a string or Buffer-like object`);
};
function joined(parts) {
    const out = new Uint8Array(parts.reduce((sum, p) => sum + p.length, 0));
    let at = 0;
    for (const part of parts) {
        out.set(part, at);
        at += part.length;
    }
    return out;
}
function shown(bytes, encoding) {
    switch (encoding) {
    case undefined: case null: case 'buffer':
        return raw.wrap(bytes);
    case 'hex': case 'base64': case 'base64url':
        return raw.encode(bytes, encoding);
    default:
        throw new TypeError(`Unknown digest encoding: "${encoding}"`);
    }
}

const ALGORITHMS = ['md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512'];
class Hash {
    #name;
    #key;
    #parts = [];
    #done = false;
    constructor(name, key) {
        this.#name = name;
        this.#key = key;
    }
    update(data, encoding) {
        if (this.#done) {
            throw new Error('Digest already called');
        }
        const bytes = typeof data === 'string' && encoding !== undefined ? Buffer.from(data, encoding) : bytesOf(data, 'data');
        this.#parts.push(bytes.slice());
        return this;
    }
    digest(encoding) {
        if (this.#done) {
            throw new Error('Digest already called');
        }
        this.#done = true;
        const data = joined(this.#parts);
        return shown(this.#key === undefined ? raw.hash(this.#name, data) : raw.hmac(this.#name, this.#key, data), encoding);
    }
    copy() {
        if (this.#done) {
            throw new Error('Digest already called');
        }
        const made = new Hash(this.#name, this.#key);
        made.#parts = [...this.#parts];
        return made;
    }
    get [Symbol.toStringTag]() {
        return this.#key === undefined ? 'Hash' : 'Hmac';
    }
}
function named(name) {
    if (typeof name !== 'string') {
        throw new TypeError('algorithm must be a string');
    }
    if (!ALGORITHMS.includes(name)) {
        throw new TypeError(`not supported algorithm: "${name}"`);
    }
    return name;
}
raw.modules.crypto = {
    createHash: (name) => new Hash(named(name)),
    createHmac: (name, key) => new Hash(named(name), bytesOf(key, 'key').slice()),
};

// ---- WebCrypto ----

const USAGES = ['encrypt', 'decrypt', 'sign', 'verify', 'deriveKey', 'deriveBits', 'wrapKey', 'unwrapKey'];
const NAMES = [
    'RSA-OAEP', 'AES-GCM', 'AES-CTR', 'AES-CBC', 'RSA-PSS', 'RSASSA-PKCS1-v1_5', 'ECDSA', 'ECDH', 'PBKDF2', 'HKDF', 'HMAC',
    'Ed25519',
];
const HASHES = ['SHA-1', 'SHA-256', 'SHA-384', 'SHA-512'];
const CURVES = ['P-256', 'P-384', 'P-521'];
const algorithmOf = (given) => {
    const name = typeof given === 'object' && given !== null ? given.name : given;
    const found = NAMES.find((n) => n.toLowerCase() === String(name).toLowerCase());
    if (found === undefined) {
        throw new TypeError(`unknown algorithm name: "${name}"`);
    }
    return found;
};
const hashOf = (given) => {
    const name = typeof given === 'object' && given !== null ? given.name ?? given.hash?.name ?? given.hash : given;
    const found = HASHES.find((n) => n === String(name).toUpperCase());
    if (found === undefined) {
        throw new TypeError(`unknown hash name: "${name}"`);
    }
    return found;
};
const hashOption = (options) => hashOf(typeof options === 'object' && options !== null ? options.hash : undefined);
const curveOf = (given) => {
    if (!CURVES.includes(given)) {
        throw new TypeError(`unknown named curve: "${given}"`);
    }
    return given;
};
const usagesOf = (given) => {
    if (!Array.isArray(given)) {
        throw new TypeError('"keyUsages" argument must be an Array');
    }
    for (const usage of given) {
        if (!USAGES.includes(usage)) {
            throw new TypeError(`unknown key usage: "${usage}"`);
        }
    }
    return USAGES.filter((u) => given.includes(u));
};

const SECRET = Symbol('secret');
class CryptoKey {
    #type;
    #extractable;
    #algorithm;
    #usages;
    #material;
    constructor(mark, type, extractable, algorithm, usages, material) {
        if (mark !== SECRET) {
            throw new TypeError('Illegal constructor');
        }
        this.#type = type;
        this.#extractable = Boolean(extractable);
        this.#algorithm = algorithm;
        this.#usages = usages;
        this.#material = material;
    }
    static material(mark, key) {
        if (mark !== SECRET || typeof key !== 'object' || key === null || !(#material in key)) {
            throw new TypeError('"key" is not a CryptoKey object');
        }
        return key.#material;
    }
    get type() {
        return this.#type;
    }
    get extractable() {
        return this.#extractable;
    }
    get algorithm() {
        return this.#algorithm;
    }
    get usages() {
        return this.#usages;
    }
    get [Symbol.toStringTag]() {
        return 'CryptoKey';
    }
}
Object.defineProperty(globalThis, 'CryptoKey', { value: CryptoKey, writable: true, configurable: true });

function keyFor(key, name, usage) {
    const material = CryptoKey.material(SECRET, key);
    if (key.algorithm.name !== name) {
        throw new TypeError(`cannot ${usage} using "${name}" with "${key.algorithm.name}" key`);
    }
    if (!key.usages.includes(usage)) {
        throw new TypeError(`provided key does not support "${usage}" operation`);
    }
    return material;
}
const make = (type, extractable, algorithm, usages, material) =>
    new CryptoKey(SECRET, type, extractable, algorithm, usages, material);
const buffer = (bytes) => bytes;

function cipher(usage, options, key, data) {
    const name = algorithmOf(options);
    const material = keyFor(key, name, usage);
    const bytes = bytesOf(data, 'data');
    const encrypts = usage === 'encrypt' || usage === 'wrapKey';
    switch (name) {
    case 'AES-GCM': {
        const iv = bytesOf(options.iv, 'iv');
        const more = options.additionalData === undefined ? new Uint8Array(0) : bytesOf(options.additionalData, 'additionalData');
        const tag = options.tagLength ?? 128;
        if (![32, 64, 96, 104, 112, 120, 128].includes(tag)) {
            throw new TypeError(`AES-GCM Invalid tagLength`);
        }
        return raw.aes_gcm(encrypts, material, iv, more, tag / 8, bytes);
    }
    case 'AES-CBC': {
        const iv = bytesOf(options.iv, 'iv');
        if (iv.length !== 16) {
            throw new TypeError('AES-CBC algorithm.iv must be 16 bytes long');
        }
        return raw.aes_cbc(encrypts, material, iv, bytes);
    }
    case 'AES-CTR': {
        const counter = bytesOf(options.counter, 'counter');
        if (counter.length !== 16) {
            throw new TypeError('AES-CTR algorithm.counter must be 16 bytes long');
        }
        const length = Number(options.length);
        if (!(length >= 1 && length <= 128)) {
            throw new TypeError('AES-CTR algorithm.length must be between 1 and 128');
        }
        if (length < 128 && bytes.length / 16 > 2 ** length) {
            throw new TypeError('AES-CTR repeated counter');
        }
        return raw.aes_ctr(material, counter, length, bytes);
    }
    case 'RSA-OAEP': {
        const label = options.label === undefined ? new Uint8Array(0) : bytesOf(options.label, 'label');
        return raw.rsa_oaep(encrypts, key.algorithm.hash.name, material, label, bytes);
    }
    default:
        throw new TypeError(`not implemented: "${name}" ${usage}`);
    }
}

function deriveBits(options, key, length) {
    const name = algorithmOf(options);
    const usage = key.usages.includes('deriveBits') ? 'deriveBits' : 'deriveKey';
    const material = keyFor(key, name, usage);
    switch (name) {
    case 'PBKDF2': {
        const rounds = Number(options.iterations);
        if (!(rounds >= 1 && rounds <= 10_000_000)) {
            throw new TypeError('PBKDF2 algorithm.iterations is invalid');
        }
        const salt = bytesOf(options.salt, 'salt');
        if (salt.length < 16) {
            throw new TypeError('PBKDF2 algorithm.salt must be at least 16 bytes long');
        }
        return raw.pbkdf2(hashOption(options), material, salt, rounds, length / 8);
    }
    case 'HKDF':
        return raw.hkdf(hashOption(options), material, bytesOf(options.salt, 'salt'), bytesOf(options.info, 'info'), length / 8);
    case 'ECDH': {
        const other = CryptoKey.material(SECRET, options.public);
        if (options.public.algorithm.namedCurve !== key.algorithm.namedCurve) {
            throw new TypeError('ECDH keys must use the same curve');
        }
        const bits = new Uint8Array(raw.ecdh(key.algorithm.namedCurve, material, other));
        const wanted = length === null || length === undefined ? bits.length : length / 8;
        if (wanted > bits.length) {
            throw new TypeError('deriveBits length exceeds the shared secret size');
        }
        return bits.slice(0, wanted).buffer;
    }
    default:
        throw new TypeError(`not implemented deriveBits: "${name}"`);
    }
}

const b64 = (bytes) => raw.encode(bytes, 'base64url');
const unb64 = (text, what) => {
    if (typeof text !== 'string') {
        throw new TypeError(`Invalid JWK ${what}`);
    }
    return new Uint8Array(raw.decode(text, 'base64url'));
};
const MARKS = { 'SHA-1': '1', 'SHA-256': '256', 'SHA-384': '384', 'SHA-512': '512' };

function exportJwk(key) {
    const material = CryptoKey.material(SECRET, key);
    const common = { key_ops: key.usages, ext: key.extractable };
    const { name } = key.algorithm;
    if (key.type === 'secret') {
        const bits = material.length * 8;
        const alg = name === 'HMAC' ? `HS${MARKS[key.algorithm.hash.name]}` : `A${bits}${name.slice(4)}`;
        return { kty: 'oct', k: b64(material), alg, ...common };
    }
    const parts = raw.key_parts(name, key.type, key.algorithm.namedCurve ?? '', material);
    const out = { ...common };
    for (const [field, value] of parts) {
        out[field] = typeof value === 'string' ? value : b64(new Uint8Array(value));
    }
    const mark = MARKS[key.algorithm.hash?.name];
    const alg = { 'RSA-OAEP': mark === '1' ? 'RSA-OAEP' : `RSA-OAEP-${mark}`, 'RSA-PSS': `PS${mark}`,
        'RSASSA-PKCS1-v1_5': `RS${mark}` }[name];
    return alg === undefined ? out : { ...out, alg };
}

function importJwk(name, options, jwk, extractable, usages) {
    if (typeof jwk !== 'object' || jwk === null) {
        throw new TypeError('invalid JWK key data: object value expected');
    }
    if (jwk.ext === false && extractable) {
        throw new TypeError('JWK ext mismatch');
    }
    if (Array.isArray(jwk.key_ops) && !usages.every((u) => jwk.key_ops.includes(u))) {
        throw new TypeError('Key operations and usage mismatch');
    }
    switch (jwk.kty) {
    case 'oct': {
        const bytes = unb64(jwk.k, 'oct key');
        return importSecret(name, options, bytes, extractable, usages, jwk.alg);
    }
    case 'RSA': case 'EC': case 'OKP': {
        const fields = jwk.kty === 'RSA' ? ['n', 'e', 'd', 'p', 'q', 'dp', 'dq', 'qi'] : ['x', 'y', 'd'];
        const type = jwk.d === undefined ? 'public' : 'private';
        const parts = fields.filter((f) => jwk[f] !== undefined).map((f) => [f, unb64(jwk[f], `${jwk.kty} key`)]);
        const curve = jwk.kty === 'EC' ? curveOf(jwk.crv) : '';
        if (jwk.kty === 'EC' && options.namedCurve !== undefined && options.namedCurve !== curve) {
            throw new TypeError('JWK EC curve mismatch');
        }
        const material = new Uint8Array(raw.key_join(name, type, curve, parts.flat()));
        return importPair(name, { ...options, namedCurve: curve }, type, material, extractable, usages);
    }
    default:
        throw new TypeError(`invalid JWK key type: "${jwk.kty}"`);
    }
}

function importSecret(name, options, bytes, extractable, usages) {
    switch (name) {
    case 'HMAC':
        return make('secret', extractable, { name, hash: { name: hashOption(options) }, length: bytes.length * 8 }, usages, bytes);
    case 'AES-GCM': case 'AES-CTR': case 'AES-CBC':
        if (![16, 24, 32].includes(bytes.length)) {
            throw new TypeError('AES Invalid key length');
        }
        return make('secret', extractable, { name, length: bytes.length * 8 }, usages, bytes);
    case 'PBKDF2': case 'HKDF':
        return make('secret', false, { name }, usages, bytes);
    default:
        throw new TypeError(`unsupported key fmt "raw" for "${name}" key`);
    }
}

function importPair(name, options, type, material, extractable, usages) {
    if (name === 'ECDSA' || name === 'ECDH') {
        return make(type, extractable || type === 'public', { name, namedCurve: curveOf(options.namedCurve) }, usages, material);
    }
    if (name === 'Ed25519') {
        return make(type, extractable || type === 'public', { name }, usages, material);
    }
    if (!name.startsWith('RSA')) {
        throw new TypeError(`unsupported key type for "${name}"`);
    }
    const [modulusLength, exponent] = raw.rsa_size(type, material);
    const algorithm = {
        name, modulusLength, publicExponent: new Uint8Array(exponent), hash: { name: hashOption(options) },
    };
    return make(type, extractable || type === 'public', algorithm, usages, material);
}

function importKey(format, data, options, extractable, wanted) {
    const name = algorithmOf(options);
    const usages = usagesOf(wanted);
    const given = typeof options === 'object' ? options : {};
    switch (format) {
    case 'raw': {
        const bytes = bytesOf(data, 'keyData').slice();
        if (name === 'ECDSA' || name === 'ECDH') {
            const spki = new Uint8Array(raw.key_join(name, 'public', curveOf(given.namedCurve), ['point', bytes]));
            return importPair(name, given, 'public', spki, extractable, usages);
        }
        return importSecret(name, given, bytes, extractable, usages);
    }
    case 'jwk':
        return importJwk(name, given, data, extractable, usages);
    case 'pkcs8': case 'spki': {
        const type = format === 'pkcs8' ? 'private' : 'public';
        const bytes = bytesOf(data, 'keyData').slice();
        raw.key_check(name, type, given.namedCurve ?? '', bytes);
        return importPair(name, given, type, bytes, extractable, usages);
    }
    default:
        throw new TypeError(`unknown key format: "${format}"`);
    }
}

function exportKey(format, key) {
    const material = CryptoKey.material(SECRET, key);
    if (!key.extractable) {
        throw new TypeError('provided key cannot be extracted');
    }
    const { name } = key.algorithm;
    switch (format) {
    case 'jwk':
        return exportJwk(key);
    case 'raw':
        if (key.type === 'public' && (name === 'ECDSA' || name === 'ECDH')) {
            return raw.key_point(key.algorithm.namedCurve, material);
        }
        if (key.type !== 'secret') {
            throw new TypeError(`unsupported key fmt "raw" for "${name}" key`);
        }
        return material.slice().buffer;
    case 'pkcs8': case 'spki': {
        const type = format === 'pkcs8' ? 'private' : 'public';
        if (key.type !== type) {
            throw new TypeError(`"${key.type}" key cannot be exported as "${format}"`);
        }
        return material.slice().buffer;
    }
    default:
        throw new TypeError(`unknown key format: "${format}"`);
    }
}

function generateKey(options, extractable, wanted) {
    const name = algorithmOf(options);
    const usages = usagesOf(wanted);
    const random = (size) => raw.random(new Uint8Array(size));
    const pair = (own, algorithm, priv, pub) => {
        const [first, second] = own;
        return {
            privateKey: make('private', extractable, algorithm, usages.filter((u) => priv.includes(u)), new Uint8Array(first)),
            publicKey: make('public', true, algorithm, usages.filter((u) => pub.includes(u)), new Uint8Array(second)),
        };
    };
    switch (name) {
    case 'HMAC': {
        const hash = hashOption(options);
        const size = options.length === undefined ? { 'SHA-1': 64, 'SHA-256': 64 }[hash] ?? 128 : Math.ceil(options.length / 8);
        return make('secret', extractable, { name, hash: { name: hash }, length: size * 8 }, usages, random(size));
    }
    case 'AES-GCM': case 'AES-CTR': case 'AES-CBC':
        if (![128, 192, 256].includes(options.length)) {
            throw new TypeError('length for AES key should be one of 128, 192, 256');
        }
        return make('secret', extractable, { name, length: options.length }, usages, random(options.length / 8));
    case 'ECDSA': case 'ECDH':
        return pair(raw.generate(name, curveOf(options.namedCurve)), { name, namedCurve: options.namedCurve },
            ['sign', 'deriveKey', 'deriveBits'], ['verify']);
    case 'Ed25519':
        return pair(raw.generate(name, ''), { name }, ['sign'], ['verify']);
    case 'RSA-OAEP': case 'RSA-PSS': case 'RSASSA-PKCS1-v1_5': {
        const own = raw.generate(name, String(options.modulusLength));
        const algorithm = {
            name, modulusLength: options.modulusLength, publicExponent: new Uint8Array([1, 0, 1]),
            hash: { name: hashOption(options) },
        };
        return pair(own, algorithm, ['sign', 'decrypt', 'unwrapKey'], ['verify', 'encrypt', 'wrapKey']);
    }
    default:
        throw new TypeError(`not implemented generateKey: "${name}"`);
    }
}

const hashFor = (options, key) => key.algorithm.hash?.name ?? (options.hash === undefined ? 'SHA-256' : hashOption(options));

const subtle = {
    async digest(algorithm, data) {
        return buffer(raw.hash(hashOf(algorithm).replace('-', '').toLowerCase(), bytesOf(data, 'data')));
    },
    async sign(options, key, data) {
        const name = algorithmOf(options);
        const material = keyFor(key, name, 'sign');
        const bytes = bytesOf(data, 'data');
        const hash = hashFor(options, key);
        if (name === 'HMAC') {
            return raw.hmac(hash.replace('-', '').toLowerCase(), material, bytes);
        }
        return raw.sign(name, hash, key.algorithm.namedCurve ?? '', material, bytes);
    },
    async verify(options, key, signature, data) {
        const name = algorithmOf(options);
        const material = keyFor(key, name, 'verify');
        const [given, bytes] = [bytesOf(signature, 'signature'), bytesOf(data, 'data')];
        const hash = hashFor(options, key);
        if (name === 'HMAC') {
            return raw.hmac_verify(hash.replace('-', '').toLowerCase(), material, bytes, given);
        }
        return raw.verify(name, hash, key.algorithm.namedCurve ?? '', material, bytes, given);
    },
    async encrypt(options, key, data) {
        return cipher('encrypt', options, key, data);
    },
    async decrypt(options, key, data) {
        return cipher('decrypt', options, key, data);
    },
    async importKey(...given) {
        return importKey(...given);
    },
    async exportKey(...given) {
        return exportKey(...given);
    },
    async generateKey(...given) {
        return generateKey(...given);
    },
    async deriveBits(options, key, length) {
        return deriveBits(options, key, length);
    },
    async deriveKey(options, key, wanted, extractable, usages) {
        const name = algorithmOf(wanted);
        const length = name === 'HMAC' ? wanted.length ?? ({ 'SHA-1': 512, 'SHA-256': 512 }[hashOption(wanted)] ?? 1024)
            : wanted.length;
        const bits = new Uint8Array(deriveBits(options, key, length));
        return importSecret(name, wanted, bits, extractable, usagesOf(usages));
    },
    async wrapKey(format, key, wrapping, options) {
        const out = exportKey(format, key);
        const bytes = format === 'jwk' ? bytesOf(JSON.stringify(out), 'key') : out;
        return cipher('wrapKey', options, wrapping, bytes);
    },
    async unwrapKey(format, wrapped, unwrapping, options, wanted, extractable, usages) {
        const bytes = cipher('unwrapKey', options, unwrapping, wrapped);
        const data = format === 'jwk' ? JSON.parse(raw.encode(new Uint8Array(bytes), 'utf8')) : bytes;
        return importKey(format, data, wanted, extractable, usages);
    },
    [Symbol.toStringTag]: 'SubtleCrypto',
};
const crypto = {
    subtle,
    getRandomValues(array) {
        if (!ArrayBuffer.isView(array)) {
            throw new TypeError('first argument is not a typed array');
        }
        if (array.byteLength > 65536) {
            throw new TypeError('requested length exceeds 65536 bytes');
        }
        new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(raw.random(new Uint8Array(array.byteLength)));
        return array;
    },
    randomUUID() {
        const b = raw.random(new Uint8Array(16));
        [b[6], b[8]] = [(b[6] & 0x0f) | 0x40, (b[8] & 0x3f) | 0x80];
        return raw.encode(b, 'hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
    },
    [Symbol.toStringTag]: 'Crypto',
};
Object.defineProperty(globalThis, 'crypto', { value: crypto, writable: true, configurable: true });
