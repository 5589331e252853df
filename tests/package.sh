#!/bin/bash
# What becomes of the Debian package on a machine that runs nginx: installed, used, upgraded, upgraded to something broken,
# removed, purged. Runs in a copy of the machine (tests/disposable). BINARY and REPOSITORY are set by tests/package.rs.
set -eu -o pipefail
step() { echo "-- $1 ($SECONDS s)"; }
fail() { echo "FAILED: $1"; systemctl status ironweir --no-pager || true; tail -n 20 /var/log/ironweir/error.log || true; exit 1; }
is() { [ "$1" = "$2" ] || fail "$3: \"$1\", not \"$2\""; }
master() { cat /run/ironweir.pid; }
until_true() { for _ in $(seq 200); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.05; done; fail "never: $*"; }

# The index of man pages is not made anew by each of them.
rm -f /var/lib/man-db/auto-update

step "two packages"
export COMPRESSION=none STRIP=yes
[ ! -e /usr/sbin/ironweir ] || fail "the machine has an ironweir already"
old=$("$REPOSITORY/packaging/deb" "$BINARY" /tmp/dist)
new=$(VERSION=99.0 "$REPOSITORY/packaging/deb" "$BINARY" /tmp/dist)

step "nginx runs"
nginx=
if command -v nginx >/dev/null; then
    nginx=yes
    systemctl start nginx
    curl -fsS -o /dev/null http://127.0.0.1/
fi
others() { [ -z "$nginx" ] || { systemctl is-active --quiet nginx && curl -fsS -o /dev/null http://127.0.0.1/; } || fail "nginx was disturbed"; }

step "installed"
dpkg -i "$old" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
is "$(systemctl is-active ironweir)" active "the service"
is "$(systemctl is-enabled ironweir)" enabled "the service"
others
curl -fsS http://127.0.0.1:8080/api/9/nginx | grep '"version":"1.31' >/dev/null || fail "the API"
curl -fsS http://127.0.0.1:8080/metrics | grep '^nginxplus_' >/dev/null || fail "the metrics"
curl -fsS http://127.0.0.1:8080/ | grep '<title>' >/dev/null || fail "the dashboard"
is "$(curl -s -o /dev/null -w '%{http_code}' -X DELETE http://127.0.0.1:8080/api/9/http/requests)" 405 "the API changes nothing"
ironweir -t || fail "-t by hand, as -t of the unit"
ironweir top --once | grep . >/dev/null || fail "top"
is "$(ps -o user= -p "$(pgrep -P "$(master)" | head -1)")" ironweir "the worker's user"
for page in "8 ironweir" "1 ironweir-stress" "1 ironweir-l4"; do
    # shellcheck disable=SC2086
    man -w $page >/dev/null || fail "man $page"
done
bash -n /usr/share/bash-completion/completions/ironweir || fail "completions"
systemd-analyze verify /usr/lib/systemd/system/ironweir.service 2>/tmp/verify || true
if grep ironweir /tmp/verify; then fail "the unit"; fi

step "configured and reloaded"
mkdir /srv/site
echo one >/srv/site/index.html
cat >/etc/ironweir/conf.d/site.conf <<'SITE'
proxy_cache_path /var/cache/ironweir/pages keys_zone=pages:1m;
server {
    listen 8088;
    root /srv/site;
    location /cached { proxy_cache pages; proxy_cache_valid 1m; proxy_pass http://127.0.0.1:8080/metrics; }
    location /upload { proxy_pass http://127.0.0.1:8089; }
}
server { listen 127.0.0.1:8089; return 200; }
SITE
systemctl reload ironweir
until_true curl -fsS http://127.0.0.1:8088/
is "$(curl -fsS http://127.0.0.1:8088/)" one "the site"
head -c 300000 /dev/zero | curl -fsS -o /dev/null --data-binary @- http://127.0.0.1:8088/upload || fail "a body in the temporary files"
curl -fsS -o /dev/null http://127.0.0.1:8088/cached || fail "the cache"
echo 'server { lisssten 1; }' >/etc/ironweir/conf.d/broken.conf
if systemctl reload ironweir 2>/dev/null; then fail "a broken configuration was taken"; fi
rm /etc/ironweir/conf.d/broken.conf
is "$(curl -fsS http://127.0.0.1:8088/)" one "after a refused reload"

step "logs rotated"
grep -q '"GET / HTTP/1.1" 200' /var/log/ironweir/access.log || fail "the access log"
if command -v logrotate >/dev/null; then
    logrotate -f /etc/logrotate.d/ironweir
    until_true [ -e /var/log/ironweir/access.log ]
    after() { curl -s -o /dev/null http://127.0.0.1:8088/after && grep -q ' /after ' /var/log/ironweir/access.log; }
    until_true after
    grep -q '"GET / HTTP/1.1" 200' /var/log/ironweir/access.log.1 || fail "what was logged before"
fi

step "upgraded under load"
cat >/tmp/load.py <<'LOAD'
import http.client, os, sys
kept = http.client.HTTPConnection("127.0.0.1", 8088)
count = 0
while not os.path.exists("/tmp/enough"):
    fresh = http.client.HTTPConnection("127.0.0.1", 8088)
    fresh.request("GET", "/", headers={"Connection": "close"})
    assert fresh.getresponse().read() == b"one\n"
    # A kept connection ends with the old server, between two requests: a client asks again, as browsers do.
    try:
        kept.request("GET", "/")
        answer = kept.getresponse()
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
        kept = http.client.HTTPConnection("127.0.0.1", 8088)
        kept.request("GET", "/")
        answer = kept.getresponse()
    assert answer.read() == b"one\n"
    count += 1
print(count, "rounds")
LOAD
python3 /tmp/load.py >/tmp/load.log 2>&1 &
load=$!
before=$(master)
dpkg -i "$new" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
after=$(master)
[ "$before" != "$after" ] || { cat /tmp/dpkg.log; fail "the old binary still serves"; }
until_true [ ! -e "/proc/$before" ]
touch /tmp/enough
wait "$load" || { tail -n 5 /tmp/load.log; fail "a request was lost"; }
cat /tmp/load.log
until_true [ "$(systemctl show -P MainPID ironweir)" = "$after" ]
is "$(systemctl is-active ironweir)" active "the service after an upgrade"
is "$(curl -fsS http://127.0.0.1:8088/)" one "the site after an upgrade"
systemctl reload ironweir
others

step "upgraded to something that does not start"
cp /usr/sbin/ironweir /tmp/good
printf '#!/bin/sh\nexit 1\n' >/tmp/bad
chmod 755 /tmp/bad
mv /tmp/bad /usr/sbin/ironweir
# Less patience than an operator has.
sed 's/^patience=.*/patience=2/' /usr/lib/ironweir/upgrade >/tmp/upgrade
if sh /tmp/upgrade; then fail "a binary that ends at once counts as good"; fi
is "$(curl -fsS http://127.0.0.1:8088/)" one "the site after a failed upgrade"
is "$(master)" "$after" "the pid file after a failed upgrade"
install -m 755 /tmp/good /usr/sbin/.new && mv /usr/sbin/.new /usr/sbin/ironweir
/usr/lib/ironweir/upgrade
is "$(systemctl is-active ironweir)" active "the service after a second try"

step "back to the older version"
echo '# mine' >>/etc/ironweir/nginx.conf
dpkg -i "$old" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
is "$(curl -fsS http://127.0.0.1:8088/)" one "the site after a downgrade"
grep -q '^# mine' /etc/ironweir/nginx.conf || fail "the operator's configuration was overwritten"

step "killed, stopped, started"
kill -KILL "$(pgrep -P "$(master)" | head -1)"
until_true curl -fsS http://127.0.0.1:8088/
systemctl stop ironweir
if curl -s -o /dev/null http://127.0.0.1:8088/; then fail "it serves after its end"; fi
systemctl start ironweir
curl -fsS -o /dev/null http://127.0.0.1:8088/

step "removed"
dpkg -r ironweir >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
[ -z "$(pgrep -x ironweir)" ] || fail "it runs without a package"
for file in /etc/ironweir/nginx.conf /var/log/ironweir/access.log; do [ -e $file ] || fail "what is the operator's went with the package"; done
for file in /usr/sbin/ironweir /usr/share/man/man8/ironweir.8.gz; do [ ! -e $file ] || fail "$file stayed"; done
others

step "installed anew, with the configuration that stayed"
dpkg -i "$new" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
is "$(curl -fsS http://127.0.0.1:8088/)" one "the site"

step "purged"
rm /etc/ironweir/conf.d/site.conf
dpkg -P ironweir >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg"; }
# An image that somebody made of it on this machine is no part of the package.
left=$(find /etc /usr /var -xdev -name '*ironweir*' ! -path "$REPOSITORY/*" ! -path '/usr/local/*' ! -path '/var/cache/man/*' ! -path '/var/lib/containers/*' \
    ! -path '/var/lib/docker/*' 2>/dev/null || true)
[ -z "$left" ] || fail "left behind: $left"
others
echo "-- all done"
