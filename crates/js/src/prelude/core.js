// What every context begins with: calls from outside, operations that are waited for, timers, console.
const raw = import.meta.raw;
const waiting = new Map();
let returned;
let hook;
let clocks = new Map();

// What most programs do not need is run when it is asked for.
raw.lazy = (target, name, part) => {
    const set = (value) => {
        Object.defineProperty(target, name, { value, writable: true, configurable: true });
    };
    const get = () => {
        raw.part(part);
        return target[name];
    };
    Object.defineProperty(target, name, { configurable: true, get, set });
};
raw.modules = {};
for (const [part, names, modules] of [
    ['njs:text', ['TextEncoder', 'TextDecoder'], ['querystring']],
    ['njs:buffer', ['Buffer'], ['buffer']],
    ['njs:crypto', ['crypto', 'CryptoKey'], ['crypto']],
    ['njs:files', [], ['fs']],
]) {
    names.forEach((name) => raw.lazy(globalThis, name, part));
    modules.forEach((name) => raw.lazy(raw.modules, name, part));
}
raw.lazy(raw, 'wrap', 'njs:buffer');

// A program's function by its name: `main.hello`.
raw.call = (path, args) => {
    returned = undefined;
    let found = globalThis;
    for (const part of path.split('.')) {
        found = found === undefined || found === null ? undefined : found[part];
    }
    if (typeof found !== 'function') {
        throw new raw.NotFound(`js function "${path}" not found`);
    }
    return found.apply(undefined, args);
};
raw.NotFound = class extends Error {};
raw.returned = () => returned;
raw.setReturnValue = (value) => {
    returned = { value };
};
raw.forgive = (promise) => {
    promise.catch(() => undefined);
};

// An operation that was begun outside: a promise, or a function that gets its result.
raw.promise = (id) => new Promise((resolve, reject) => waiting.set(id, [resolve, reject]));
raw.later = (id, run) => {
    waiting.set(id, [run, run]);
    return id;
};
raw.settle = (id, ok, value) => {
    const pair = waiting.get(id);
    if (pair !== undefined) {
        waiting.delete(id);
        pair[ok ? 0 : 1](value);
    }
};
// The request is over: what the next one must not see is gone.
raw.reset = () => {
    const run = hook;
    hook = undefined;
    returned = undefined;
    waiting.clear();
    clocks = new Map();
    raw.forget?.();
    run?.();
};
raw.failure = (value) => {
    if (value instanceof Error) {
        const stack = value.stack ?? '';
        return stack === '' ? String(value) : `${value}\n${stack.trimEnd()}`;
    }
    return typeof value === 'object' && value !== null ? inspect(value) : String(value);
};

function timer(run, delay, args) {
    if (typeof run !== 'function') {
        throw new TypeError('first arg must be a function');
    }
    return raw.later(raw.sleep(delay), () => run(...args));
}
const globals = {
    // Of the modules that are always there; programs for njs's own engine begin with it.
    require(path) {
        if (arguments.length === 0) {
            throw new TypeError('missing path');
        }
        const name = String(path);
        if (!Object.hasOwn(raw.modules, name)) {
            throw new Error(`Cannot load module "${name}"`);
        }
        return raw.modules[name];
    },
    setTimeout(run, delay, ...args) {
        const ms = Number(delay);
        return timer(run, ms > 0 ? ms : 0, args);
    },
    setImmediate(run, ...args) {
        return timer(run, 0, args);
    },
    clearTimeout(id) {
        if (waiting.delete(id)) {
            raw.cancel(id);
        }
    },
    atob(text) {
        if (arguments.length === 0) {
            throw new TypeError('1 argument required');
        }
        const clean = String(text).replace(/[\t\n\f\r ]/g, '');
        const bare = clean.length % 4 === 0 ? clean.replace(/==?$/, '') : clean;
        if (bare.length % 4 === 1 || /[^A-Za-z0-9+/]/.test(bare)) {
            throw new TypeError('the string to be decoded is not correctly encoded');
        }
        let out = '';
        for (const byte of new Uint8Array(raw.decode(bare, 'base64'))) {
            out += String.fromCharCode(byte);
        }
        return out;
    },
    btoa(text) {
        if (arguments.length === 0) {
            throw new TypeError('1 argument required');
        }
        const given = String(text);
        const bytes = new Uint8Array(given.length);
        for (let i = 0; i < given.length; i++) {
            const code = given.charCodeAt(i);
            if (code > 255) {
                throw new TypeError('invalid character (>= U+00FF)');
            }
            bytes[i] = code;
        }
        return raw.encode(bytes, 'base64');
    },
};
for (const name of Object.keys(globals)) {
    Object.defineProperty(globalThis, name, { value: globals[name], writable: true, configurable: true });
}

// A value as njs shows it.
const DEEPEST = 16;
function inspect(value, depth = 0, seen = []) {
    switch (typeof value) {
    case 'string':
        return depth === 0 ? value : `'${value}'`;
    case 'bigint':
        return `${value}n`;
    case 'function':
        return value.name ? `[Function: ${value.name}]` : '[Function]';
    case 'symbol':
        return value.toString();
    case 'object':
        break;
    default:
        return Object.is(value, -0) ? '-0' : String(value);
    }
    if (value === null) {
        return 'null';
    }
    if (value instanceof Error) {
        return depth === 0 ? raw.failure(value) : String(value);
    }
    if (value instanceof Date) {
        return value.toISOString();
    }
    if (value instanceof RegExp) {
        return String(value);
    }
    if (value instanceof Promise) {
        return 'Promise {}';
    }
    if (depth > DEEPEST || seen.includes(value)) {
        return '[Circular]';
    }
    const inside = [...seen, value];
    const show = (v) => inspect(v, depth + 1, inside);
    if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
        const bytes = value instanceof ArrayBuffer ? new Uint8Array(value) : value;
        const list = bytes instanceof DataView ? [] : Array.from(bytes, show);
        return `${value.constructor.name} [${list.join(',')}]`;
    }
    if (Array.isArray(value)) {
        return `[${value.map(show).join(',')}]`;
    }
    const name = value.constructor?.name;
    const prefix = name && name !== 'Object' ? `${name} ` : '';
    return `${prefix}{${Object.keys(value).map((k) => `${k}:${show(value[k])}`).join(',')}}`;
}
raw.inspect = inspect;

const [ERR, WARN, INFO] = [4, 5, 7];
const line = (level) => (...values) => {
    raw.log(level, values.map((v) => inspect(v)).join(' '));
};
const label = (name) => name === undefined ? 'default' : String(name);
const shown = {
    error: line(ERR),
    warn: line(WARN),
    info: line(INFO),
    log: line(INFO),
    dump: line(INFO),
    time(given) {
        const name = label(given);
        if (clocks.has(name)) {
            raw.log(INFO, `Timer "${name}" already exists.`);
            return;
        }
        clocks.set(name, raw.now());
    },
    timeEnd(given) {
        const [now, name] = [raw.now(), label(given)];
        const began = clocks.get(name);
        if (began === undefined) {
            raw.log(INFO, `Timer "${name}" doesn't exist.`);
            return;
        }
        clocks.delete(name);
        raw.log(INFO, `${name}: ${(now - began).toFixed(6)}ms`);
    },
};
const console_ = Object.create({ [Symbol.toStringTag]: 'Console' });
for (const name of Object.keys(shown)) {
    Object.defineProperty(console_, name, { value: shown[name], writable: true, configurable: true });
}
Object.defineProperty(globalThis, 'console', { value: console_, writable: true, configurable: true });

const njs = {
    version: '1.0.0',
    version_number: 0x010000,
    engine: 'QuickJS',
    dump: (value) => inspect(value),
    on(event, run) {
        if (event !== 'exit') {
            throw new TypeError(`unknown event "${event}"`);
        }
        if (typeof run !== 'function') {
            throw new TypeError('callback is not a function');
        }
        hook = run;
    },
    get memoryStats() {
        return { size: raw.memory() };
    },
    [Symbol.toStringTag]: 'njs',
};
Object.defineProperty(globalThis, 'njs', { value: njs, writable: true, configurable: true });

let process_;
Object.defineProperty(globalThis, 'process', {
    configurable: true,
    get() {
        if (process_ === undefined) {
            const [argv, env, pid, ppid] = raw.process();
            process_ = {
                argv, pid, ppid, env: Object.fromEntries(env),
                [Symbol.toStringTag]: 'process',
            };
        }
        return process_;
    },
});
