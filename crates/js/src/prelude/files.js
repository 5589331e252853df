// The module `fs`: calls that work at once, and the same as promises. Files are read and written by the thread that asks.
const raw = import.meta.raw;
const bytesOf = (data, encoding) => {
    if (typeof data === 'string') {
        return raw.decode(data, encodingOf(encoding) ?? 'utf8');
    }
    return data instanceof ArrayBuffer || ArrayBuffer.isView(data) ? data : raw.decode(String(data), 'utf8');
};
function encodingOf(options) {
    const name = typeof options === 'string' ? options : options?.encoding;
    if (name === undefined || name === null || name === 'buffer') {
        return undefined;
    }
    if (!/^(utf-?8|hex|base64|base64url)$/i.test(name)) {
        throw new TypeError(`"${name}" encoding is not supported`);
    }
    return name.toLowerCase() === 'utf-8' ? 'utf8' : name.toLowerCase();
}
const pathOf = (path, name = 'path') => {
    if (typeof path === 'string') {
        if (path.includes('\0')) {
            throw new TypeError(`"${name}" must be a Buffer or string without null bytes`);
        }
        return path;
    }
    if (ArrayBuffer.isView(path)) {
        return raw.encode(path, 'utf8');
    }
    throw new TypeError(`"${name}" must be a string or Buffer`);
};
// An operation of the system: its failure has `errno`, `code`, `syscall` and `path`.
function call(name, ...args) {
    const [failed, value] = raw.file(name, args);
    if (failed) {
        const [text, errno, code, syscall, path] = value;
        const error = new Error(text);
        Object.assign(error, path === undefined ? { errno, code, syscall } : { errno, code, syscall, path });
        throw error;
    }
    return value;
}
const out = (buffer, options) => {
    const encoding = encodingOf(options);
    return encoding === undefined ? raw.wrap(buffer) : raw.encode(buffer, encoding);
};
const FLAGS = ['r', 'r+', 'rs', 'sr', 'rs+', 'sr+', 'w', 'wx', 'xw', 'w+', 'wx+', 'xw+', 'a', 'ax', 'xa', 'as', 'sa', 'a+', 'ax+',
    'xa+', 'as+', 'sa+'];
const flagOf = (given, usual) => {
    const flag = given ?? usual;
    if (!FLAGS.includes(flag)) {
        throw new TypeError(`Unknown file open flags: "${flag}"`);
    }
    return flag;
};
const modeOf = (given, usual) => given === undefined || given === null ? usual
    : typeof given === 'string' ? parseInt(given, 8) : Number(given);

class Stats {
    constructor([dev, ino, mode, nlink, uid, gid, rdev, size, blksize, blocks, atimeMs, mtimeMs, ctimeMs]) {
        Object.assign(this, { dev, ino, mode, nlink, uid, gid, rdev, size, blksize, blocks, atimeMs, mtimeMs, ctimeMs,
            birthtimeMs: ctimeMs });
        for (const name of ['atime', 'mtime', 'ctime', 'birthtime']) {
            this[name] = new Date(this[`${name}Ms`]);
        }
    }
    #is(kind) {
        return (this.mode & 0o170000) === kind;
    }
    isBlockDevice() { return this.#is(0o060000); }
    isCharacterDevice() { return this.#is(0o020000); }
    isDirectory() { return this.#is(0o040000); }
    isFIFO() { return this.#is(0o010000); }
    isFile() { return this.#is(0o100000); }
    isSocket() { return this.#is(0o140000); }
    isSymbolicLink() { return this.#is(0o120000); }
}
class Dirent {
    #kind;
    constructor(name, kind) {
        this.name = name;
        this.#kind = kind;
    }
    isBlockDevice() { return this.#kind === 'b'; }
    isCharacterDevice() { return this.#kind === 'c'; }
    isDirectory() { return this.#kind === 'd'; }
    isFIFO() { return this.#kind === 'p'; }
    isFile() { return this.#kind === 'f'; }
    isSocket() { return this.#kind === 's'; }
    isSymbolicLink() { return this.#kind === 'l'; }
}

function readdir(path, options) {
    const names = call('readdir', pathOf(path));
    const types = typeof options === 'object' && options !== null && options.withFileTypes;
    const encoding = encodingOf(options);
    const name = (text) => typeof options === 'object' && options?.encoding === 'buffer' || options === 'buffer'
        ? raw.wrap(raw.decode(text, 'utf8')) : encoding === undefined || encoding === 'utf8' ? text
            : raw.encode(raw.decode(text, 'utf8'), encoding);
    return names.map(([text, kind]) => types ? new Dirent(name(text), kind) : name(text));
}
function stat(kind, path, options) {
    try {
        return new Stats(call(kind, kind === 'fstat' ? path : pathOf(path)));
    } catch (e) {
        if (options?.throwIfNoEntry === false && e.code === 'ENOENT') {
            return undefined;
        }
        throw e;
    }
}
function part(buffer, offset, length, position) {
    if (typeof offset === 'object' && offset !== null) {
        ({ offset, length, position } = offset);
    }
    offset ??= 0;
    if (!(offset >= 0 && offset <= buffer.byteLength)) {
        throw new RangeError('offset is out of range (must be <= buffer length)');
    }
    length ??= buffer.byteLength - offset;
    if (!(length >= 0 && offset + length <= buffer.byteLength)) {
        throw new RangeError('length is out of range (must be <= buffer.length - offset)');
    }
    return [new Uint8Array(buffer.buffer ?? buffer, (buffer.byteOffset ?? 0) + offset, length), position ?? -1];
}
function readInto(fd, buffer, offset, length, position) {
    const [view, at] = part(buffer, offset, length, position);
    const got = new Uint8Array(call('read', fd, view.length, at));
    view.set(got);
    return got.length;
}
function writeFrom(fd, data, offset, length, position) {
    if (typeof data === 'string') {
        return call('write', fd, bytesOf(data, length), typeof offset === 'number' ? offset : -1);
    }
    const [view, at] = part(data, offset, length, position);
    return call('write', fd, view, at);
}

const sync = {
    access: (path, mode) => void call('access', pathOf(path), mode ?? 0),
    appendFile: (path, data, options) =>
        void call('writeFile', pathOf(path), bytesOf(data, options), flagOf(options?.flag, 'a'), modeOf(options?.mode, 0o666)),
    close: (fd) => void call('close', fd),
    exists: (path) => {
        try {
            call('access', pathOf(path), 0);
            return true;
        } catch {
            return false;
        }
    },
    fstat: (fd, options) => stat('fstat', fd, options),
    lstat: (path, options) => stat('lstat', path, options),
    mkdir: (path, options) => void call('mkdir', pathOf(path), Boolean(options?.recursive),
        modeOf(typeof options === 'object' ? options?.mode : options, 0o777)),
    open: (path, flags, mode) => call('open', pathOf(path), flagOf(flags, 'r'), modeOf(mode, 0o666)),
    read: readInto,
    readFile: (path, options) => {
        encodingOf(options);
        return out(call('readFile', pathOf(path), flagOf(options?.flag, 'r')), options);
    },
    readdir,
    readlink: (path, options) => {
        const found = call('readlink', pathOf(path));
        return encodingOf(options) === undefined && (options === 'buffer' || options?.encoding === 'buffer')
            ? raw.wrap(raw.decode(found, 'utf8')) : found;
    },
    realpath: (path, options) => {
        const found = call('realpath', pathOf(path));
        return options === 'buffer' || options?.encoding === 'buffer' ? raw.wrap(raw.decode(found, 'utf8')) : found;
    },
    rename: (from, to) => void call('rename', pathOf(from, 'oldPath'), pathOf(to, 'newPath')),
    rmdir: (path, options) => void call('rmdir', pathOf(path), Boolean(options?.recursive)),
    stat: (path, options) => stat('stat', path, options),
    symlink: (target, path) => void call('symlink', pathOf(target, 'target'), pathOf(path)),
    unlink: (path) => void call('unlink', pathOf(path)),
    write: writeFrom,
    writeFile: (path, data, options) =>
        void call('writeFile', pathOf(path), bytesOf(data, options), flagOf(options?.flag, 'w'), modeOf(options?.mode, 0o666)),
};

class FileHandle {
    #fd;
    constructor(fd) {
        this.#fd = fd;
    }
    get fd() {
        return this.#fd;
    }
    async close() {
        sync.close(this.#fd);
        this.#fd = -1;
    }
    async read(buffer, offset, length, position) {
        return { bytesRead: readInto(this.#fd, buffer, offset, length, position), buffer };
    }
    async stat(options) {
        return sync.fstat(this.#fd, options);
    }
    async write(data, offset, length, position) {
        return { bytesWritten: writeFrom(this.#fd, data, offset, length, position), buffer: data };
    }
    valueOf() {
        return this.#fd;
    }
    get [Symbol.toStringTag]() {
        return 'FileHandle';
    }
}

const fs = { constants: { F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1 }, promises: {}, Stats, Dirent };
for (const name of Object.keys(sync)) {
    fs[`${name}Sync`] = sync[name];
    if (!['close', 'exists', 'fstat', 'read', 'write'].includes(name)) {
        fs.promises[name] = async (...args) => sync[name](...args);
    }
}
fs.promises.open = async (...args) => new FileHandle(sync.open(...args));
fs.promises.constants = fs.constants;
raw.modules.fs = fs;
