// `ngx`: the log, the configuration, dictionaries that threads share.
const raw = import.meta.raw;
for (const name of ['Headers', 'Request', 'Response']) {
    raw.lazy(globalThis, name, 'njs:fetch');
}
raw.lazy(raw, 'ngx_fetch', 'njs:fetch');

class SharedMemoryError extends Error {
    constructor(message) {
        super(message);
        this.name = 'SharedMemoryError';
    }
}
Object.defineProperty(globalThis, 'SharedMemoryError', { value: SharedMemoryError, writable: true, configurable: true });

class SharedDict {
    #number;
    #facts;
    constructor(number, facts) {
        this.#number = number;
        this.#facts = facts;
    }
    #value(value) {
        if (this.#facts[1] === 'number') {
            if (typeof value !== 'number') {
                throw new TypeError('number value is expected');
            }
            return value;
        }
        if (typeof value !== 'string') {
            throw new TypeError('string value is expected');
        }
        return value;
    }
    #ttl(timeout) {
        if (timeout === undefined) {
            return -1;
        }
        if (!this.#facts[3]) {
            throw new TypeError('shared dict must be declared with timeout');
        }
        if (typeof timeout !== 'number') {
            throw new TypeError('timeout is not a number');
        }
        if (timeout < 1) {
            throw new TypeError('timeout must be greater than or equal to 1');
        }
        return timeout;
    }
    #store(way, key, value, timeout) {
        const [done, why] = raw.dict_store(this.#number, way, String(key), this.#value(value), this.#ttl(timeout));
        if (why === 'no memory') {
            throw new SharedMemoryError('');
        }
        return done;
    }
    get name() {
        return this.#facts[0];
    }
    get type() {
        return this.#facts[1];
    }
    get capacity() {
        return this.#facts[2];
    }
    add(key, value, timeout) {
        return this.#store('add', key, value, timeout);
    }
    set(key, value, timeout) {
        this.#store('set', key, value, timeout);
        return this;
    }
    replace(key, value, timeout) {
        return this.#store('replace', key, value, timeout);
    }
    get(key) {
        return raw.dict_get(this.#number, String(key));
    }
    has(key) {
        return this.get(key) !== undefined;
    }
    pop(key) {
        return raw.dict_take(this.#number, String(key));
    }
    delete(key) {
        return raw.dict_take(this.#number, String(key)) !== undefined;
    }
    incr(key, by, first, timeout) {
        if (this.#facts[1] !== 'number') {
            throw new TypeError('shared dict is not numeric');
        }
        if (typeof by !== 'number') {
            throw new TypeError('delta is not a number');
        }
        if (first !== undefined && typeof first !== 'number') {
            throw new TypeError('init value is not a number');
        }
        const found = raw.dict_incr(this.#number, String(key), by, first ?? 0, this.#ttl(timeout));
        if (typeof found !== 'number') {
            throw new SharedMemoryError('');
        }
        return found;
    }
    ttl(key) {
        if (!this.#facts[3]) {
            throw new TypeError('shared dict must be declared with timeout');
        }
        return raw.dict_ttl(this.#number, String(key));
    }
    clear() {
        raw.dict_clear(this.#number);
    }
    freeSpace() {
        return raw.dict_free(this.#number);
    }
    keys(most) {
        return raw.dict_keys(this.#number, limitOf(most));
    }
    items(most) {
        return this.keys(most).map((key) => [key, this.get(key)]).filter(([, value]) => value !== undefined);
    }
    size() {
        return raw.dict_size(this.#number);
    }
    get [Symbol.toStringTag]() {
        return 'SharedDict';
    }
}
const MAX_KEYS = 1024;
function limitOf(most) {
    if (most === undefined) {
        return MAX_KEYS;
    }
    const number = Number(most);
    if (!Number.isFinite(number)) {
        throw new TypeError('invalid number');
    }
    return number;
}

let shared;
const ngx = {
    ERR: 4,
    WARN: 5,
    INFO: 7,
    fetch: (...given) => raw.ngx_fetch(...given),
    log(level, message) {
        const number = Number(level);
        if (!Number.isInteger(number)) {
            throw new TypeError('level is not a number');
        }
        if (number < 1 || number > 8) {
            throw new RangeError('level is out of range');
        }
        raw.log(number, raw.inspect(message));
    },
    get shared() {
        if (shared === undefined) {
            shared = {};
            raw.dict_list().forEach((facts, number) => {
                Object.defineProperty(shared, facts[0], { value: new SharedDict(number, facts), enumerable: true });
            });
        }
        return shared;
    },
    engine: 'QuickJS',
    [Symbol.toStringTag]: 'ngx',
};
for (const name of ['build', 'conf_file_path', 'conf_prefix', 'error_log_path', 'prefix', 'version', 'version_number', 'worker_id']) {
    Object.defineProperty(ngx, name, { get: () => raw.ngx_fact(name), enumerable: true, configurable: true });
}
Object.defineProperty(globalThis, 'ngx', { value: ngx, writable: true, configurable: true });
