#!/bin/sh
# How far the cache follows RFC 9111, as http-cache-tests see it (https://cache-tests.fyi): usage: [CACHE_TESTS=CLONE] http_cache_tests.sh [PROGRAM ...]
# CLONE is one of http-tests/cache-tests with its packages installed (`npm install`). Without it npm's release is taken, which is years older: 165
# required tests that a proxy can be asked (nginx passes 101), where the repository has 160 and three for browsers (nginx 115).
# Each PROGRAM (default: target/debug/ironweir) serves their configuration for nginx; one that takes `proxy_cache_rfc9111` serves it a
# second time with that on. Says how many of the required tests pass, and names those that do not. Needs node and npm (the network the first
# time); the release is kept in target/http-cache-tests. Some two minutes for each run, most of them spent waiting. By hand, not in `make test`:
# the suite judges by seconds, and a busy machine fails tests.
set -eu
VERSION=0.4.5
here=$(cd "$(dirname "$0")/../.." && pwd)
suite=$here/target/http-cache-tests
[ $# -gt 0 ] || set -- "$here/target/debug/ironweir"

if [ -n "${CACHE_TESTS:-}" ]; then
    tests=$(cd "$CACHE_TESTS" && pwd) engine=test-engine
else
    tests=$suite/node_modules/http-cache-tests engine=.
    [ -d "$tests" ] || {
        mkdir -p "$suite"
        npm install --silent --no-audit --no-fund --prefix "$suite" "http-cache-tests@$VERSION"
    }
fi
work=$(mktemp -d)
origin='' proxy=''
finish() {
    [ -z "$proxy" ] || kill "$proxy" 2>/dev/null || :
    [ -z "$origin" ] || kill "$origin" 2>/dev/null || :
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM
free_port() { node -e 'const s = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close() })'; }

cat >"$work/count.mjs" <<'JS'
import fs from 'fs'
const [, , suite, file, name] = process.argv
// The release has a group beside its index.
const files = ['index', 'surrogate-control'].map(name => `${suite}/tests/${name}.mjs`).filter(file => fs.existsSync(file))
const groups = await Promise.all(files.map(async file => (await import(file)).default))
const results = JSON.parse(fs.readFileSync(file))
const wanted = groups.flat().flatMap(group => group.tests).filter(test => !test.browser_only)
const required = wanted.filter(test => (test.kind || 'required') === 'required')
const passes = id => results[id] === true
// A test that another one is the condition of says nothing where that does not pass.
const known = required.filter(test => passes(test.id) || (test.depends_on || []).every(passes))
const failed = known.filter(test => !passes(test.id))
console.log(`${name}: ${required.filter(test => passes(test.id)).length} of ${required.length} required tests pass, ${failed.length} fail, ` +
  `${required.length - known.length} depend on others that do not pass`)
for (const test of failed) console.log(`  ${test.id}: ${[].concat(results[test.id]).join(': ')}`)
JS

cd "$tests"
origin_port=$(free_port)
npm_config_protocol=http npm_config_port=$origin_port npm_config_pidfile=$work/origin.pid node $engine/server/server.mjs >"$work/origin.log" 2>&1 &
origin=$!

# run PROGRAM NAME MORE: one pass of the suite.
run() {
    port=$(free_port)
    rm -rf "$work/p" && mkdir -p "$work/p/logs" && chmod -R 777 "$work"
    cat >"$work/p/nginx.conf" <<CONF
daemon off; pid logs/pid; error_log logs/error.log;
events {}
http {
    access_log off;
    proxy_cache_path $work/p/cache levels=1:2 keys_zone=my-cache:8m max_size=1000m inactive=600m;
    server {
        listen 127.0.0.1:$port;
        location / { proxy_pass http://127.0.0.1:$origin_port; proxy_cache my-cache; proxy_cache_revalidate on; $3 }
    }
}
CONF
    "$1" -p "$work/p" -c nginx.conf 2>"$work/p/start.log" &
    proxy=$!
    until curl -s -o "$work/p/out" "http://127.0.0.1:$port/"; do
        kill -0 "$proxy" 2>/dev/null || { cat "$work/p/start.log" >&2; exit 1; }
        sleep 0.1
    done
    npm_config_base="http://127.0.0.1:$port" npm_package_config_id='' node --no-warnings $engine/cli.mjs >"$work/results.json"
    node --no-warnings "$work/count.mjs" "$PWD" "$work/results.json" "$2"
    kill "$proxy" && { wait "$proxy" || :; }
    proxy=
}

for program; do
    run "$program" "$program" ''
    echo 'events {} http { proxy_cache_rfc9111 on; }' >"$work/try.conf"
    mkdir -p "$work/logs"
    ! "$program" -t -p "$work" -c try.conf >/dev/null 2>&1 || run "$program" "$program with proxy_cache_rfc9111" 'proxy_cache_rfc9111 on;'
done
