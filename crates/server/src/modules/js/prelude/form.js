// Forms in the body of a request: `r.readRequestForm`. What a client sends is taken apart strictly, within limits.
const raw = import.meta.raw;
const MAX_KEYS = 128;
const MAX_BOUNDARY = 200;
const MAX_HEADERS = 32;
const MAX_LINE = 4096;
const MAX_HEADER = 16384;
const fail = (what) => {
    throw new TypeError(what);
};

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
            fail('"callback" is not a function');
        }
        this.#fields.forEach(([n, v]) => run.call(self, v, n));
    }
    hasFiles() {
        return this.#fields.some(([, , isFile]) => isFile);
    }
    get [Symbol.toStringTag]() {
        return 'RequestForm';
    }
}

// `; name=value; other="quoted value"`, from `at` on.
function parameters(text, at, malformed) {
    const found = [];
    for (;;) {
        while (text[at] === ' ' || text[at] === '\t') {
            at++;
        }
        if (at >= text.length) {
            return found;
        }
        if (text[at] !== ';') {
            fail(malformed);
        }
        const name = /[\t ]*([^=;\t ]*)[\t ]*(=?)[\t ]*/y;
        name.lastIndex = at + 1;
        const [, key, sign] = name.exec(text);
        at = name.lastIndex;
        if (key === '' || sign === '') {
            fail('malformed parameter');
        }
        let value = '';
        if (text[at] === '"') {
            for (at++; text[at] !== '"'; at++) {
                if (text[at] === '\\') {
                    at++;
                }
                if (at >= text.length) {
                    fail('unterminated quoted parameter');
                }
                value += text[at];
            }
            at++;
        } else {
            value = /[^;\t ]*/.exec(text.slice(at))[0];
            at += value.length;
            if (value === '') {
                fail('empty parameter value');
            }
        }
        found.push([key.toLowerCase(), value]);
    }
}

// The one value of a parameter.
function only(all, name, what) {
    const found = all.filter(([n]) => n === name);
    if (found.length > 1) {
        fail(`duplicate ${what}`);
    }
    return found[0]?.[1];
}

function plain(text) {
    if (/%(?![0-9A-Fa-f]{2})/.test(text)) {
        fail('malformed percent escape');
    }
    return raw.unescape(text.replaceAll('+', ' '));
}

function fieldsOfText(body, push) {
    for (const part of raw.encode(body, 'utf8').split('&')) {
        if (part === '') {
            continue;
        }
        const at = part.indexOf('=');
        push(at < 0 ? [plain(part), '', false] : [plain(part.slice(0, at)), plain(part.slice(at + 1)), false]);
    }
}

// The name of a part, and of the file that it is.
function nameOf(head) {
    if (head.length > MAX_HEADER) {
        fail('multipart headers are too large');
    }
    let found;
    const lines = head === '' ? [] : head.split('\r\n');
    lines.forEach((line, number) => {
        if (line.length > MAX_LINE) {
            fail('multipart header line is too long');
        }
        if (number >= MAX_HEADERS) {
            fail('too many multipart headers');
        }
        const at = line.indexOf(':');
        if (at <= 0) {
            fail('malformed multipart header');
        }
        if (line.slice(0, at).trim().toLowerCase() === 'content-disposition') {
            if (found !== undefined) {
                fail('duplicate Content-Disposition header');
            }
            found = line.slice(at + 1).trim();
        }
    });
    if (found === undefined) {
        fail('missing Content-Disposition header');
    }
    const kind = /^[^;\t ]*/.exec(found)[0];
    if (kind.toLowerCase() !== 'form-data') {
        fail('unsupported disposition type');
    }
    const all = parameters(found, kind.length, 'malformed Content-Disposition');
    const name = only(all, 'name', 'name parameter');
    const file = only(all, 'filename', 'filename parameter');
    if (name === undefined) {
        fail('multipart field name is required');
    }
    return [name, file];
}

function fieldsOfParts(body, boundary, push) {
    const data = raw.wrap(body);
    const mark = `--${boundary}`;
    if (data.length < mark.length || data.toString('utf8', 0, mark.length) !== mark) {
        fail('malformed multipart body');
    }
    for (let at = mark.length; ;) {
        const next = data.toString('utf8', at, at + 2);
        if (next === '--') {
            return;
        }
        if (next !== '\r\n') {
            fail('malformed multipart boundary');
        }
        at += 2;
        const end = data.toString('utf8', at, at + 2) === '\r\n' ? at - 2 : data.indexOf('\r\n\r\n', at);
        if (end < at - 2) {
            fail('missing multipart header separator');
        }
        const [name, file] = nameOf(data.toString('utf8', at, end));
        const begin = end + 4;
        const stop = data.indexOf(`\r\n${mark}`, begin - 2);
        if (stop < 0) {
            fail('truncated multipart body');
        }
        const isFile = file !== undefined;
        push([name, isFile ? { name: file } : data.toString('utf8', begin, Math.max(stop, begin)), isFile]);
        at = stop + 2 + mark.length;
    }
}

raw.form_of = (body, type, options) => {
    const most = options?.maxKeys ?? MAX_KEYS;
    const fields = [];
    const push = (field) => {
        if (fields.length >= most) {
            fail('maxKeys limit exceeded');
        }
        fields.push(field);
    };
    if (type === undefined) {
        fail('request content type is required');
    }
    const kind = /^[\t ]*([^;\t ]*)/.exec(type);
    switch (kind[1].toLowerCase()) {
    case 'application/x-www-form-urlencoded':
        parameters(type, kind[0].length, 'malformed content type');
        fieldsOfText(body, push);
        break;
    case 'multipart/form-data': {
        const boundary = only(parameters(type, kind[0].length, 'malformed content type'), 'boundary', 'boundary parameter');
        if (boundary === undefined) {
            fail('multipart boundary is required');
        }
        if (boundary === '' || boundary.length > MAX_BOUNDARY) {
            fail('invalid multipart boundary');
        }
        fieldsOfParts(body, boundary, push);
        break;
    }
    default:
        fail('unsupported content type');
    }
    return new RequestForm(fields);
};
