#!/bin/sh
# Builds an nginx to compare with from its source: usage: build-nginx.sh SOURCE PREFIX
# It calls itself `ironweir` where answers would say `nginx`, so that lengths are the same. The source is not changed. Needs a C compiler
# and the headers of OpenSSL, PCRE2 and zlib.
set -eu
SOURCE=$(readlink -f "$1"); PREFIX=$(readlink -m "$2"); WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
cp -r "$SOURCE/." "$WORK"; cd "$WORK"
sed -i 's/"Server: nginx" CRLF/"Server: ironweir" CRLF/' src/http/ngx_http_header_filter_module.c
sed -i 's/<center>nginx<\/center>/<center>ironweir<\/center>/' src/http/ngx_http_special_response.c
CONFIGURE=./configure; [ -x "$CONFIGURE" ] || CONFIGURE=./auto/configure
MODULES="ssl v2 realip addition sub gunzip gzip_static auth_request random_index secure_link slice stub_status"
"$CONFIGURE" --prefix="$PREFIX" $(for m in $MODULES; do echo "--with-http_${m}_module"; done) \
    --with-stream --with-stream_realip_module --with-stream_ssl_preread_module --with-debug > configure.log
make -j"$(nproc)" > make.log
make install > /dev/null
echo "$PREFIX/sbin/nginx"
