// Forms in the body of a request: `r.readRequestForm`.
const raw = import.meta.raw;
// The fields of a form.
class RequestForm {
    #fields;
    constructor(fields) {
        this.#fields = fields;
    }
    get(name) {
        const found = this.#fields.find(([n]) => n === String(name));
        return found === undefined ? null : found[1];
    }
    getAll(name) {
        return this.#fields.filter(([n]) => n === String(name)).map(([, v]) => v);
    }
    has(name) {
        return this.#fields.some(([n]) => n === String(name));
    }
    forEach(run, self) {
        if (typeof run !== 'function') {
            throw new TypeError('"callback" is not a function');
        }
        this.#fields.forEach(([n, v]) => run.call(self, v, n, this));
    }
    hasFiles() {
        return this.#fields.some(([, , isFile]) => isFile);
    }
    get [Symbol.toStringTag]() {
        return 'RequestForm';
    }
}

function formOf(body, kind, options) {
    const most = options?.maxKeys ?? 128;
    const bound = /^multipart\/form-data\b.*?;\s*boundary=(?:"([^"]+)"|([^\s;]+))/i.exec(kind);
    const fields = [];
    const push = (field) => {
        if (fields.length >= most) {
            throw new RangeError('form has too many fields');
        }
        fields.push(field);
    };
    if (/^application\/x-www-form-urlencoded\s*(;|$)/i.test(kind)) {
        const whole = raw.encode(body, 'utf8');
        for (const part of whole === '' ? [] : whole.split('&')) {
            const at = part.indexOf('=');
            const plain = (v) => raw.unescape(v.replaceAll('+', ' '));
            push([plain(at < 0 ? part : part.slice(0, at)), at < 0 ? '' : plain(part.slice(at + 1)), false]);
        }
        return new RequestForm(fields);
    }
    if (bound === null) {
        throw new TypeError('unsupported content type');
    }
    const data = raw.wrap(body);
    const mark = `--${bound[1] ?? bound[2]}`;
    let at = data.indexOf(mark);
    if (at !== 0) {
        throw new TypeError('malformed multipart body');
    }
    for (;;) {
        at += mark.length;
        if (data.toString('utf8', at, at + 2) === '--') {
            return new RequestForm(fields);
        }
        const head = data.indexOf('\r\n\r\n', at);
        const end = head < 0 ? -1 : data.indexOf(`\r\n${mark}`, head + 2);
        if (end < 0) {
            throw new TypeError('malformed multipart body');
        }
        const lines = data.toString('utf8', at, head);
        const name = /\bname="((?:[^"\\]|\\.)*)"/i.exec(lines.replace(/filename="(?:[^"\\]|\\.)*"/i, ''));
        const file = /\bfilename="((?:[^"\\]|\\.)*)"/i.exec(lines);
        if (name === null) {
            throw new TypeError('malformed multipart body');
        }
        const inside = data.subarray(head + 4, Math.max(end, head + 4));
        const value = file === null ? inside.toString() : { name: file[1], data: raw.wrap(new Uint8Array(inside).buffer),
            type: (/^content-type:\s*([^\r\n]*)/im.exec(lines) ?? [])[1] ?? '' };
        push([name[1], value, file !== null]);
        at = end + 2;
    }
}
raw.form_of = formOf;
