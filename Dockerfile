# A small image: the statically linked binary, its configuration, authorities' certificates. docs/install.md says how to use it.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN make static
RUN PREFIX=/usr packaging/install target/x86_64-unknown-linux-musl/release/ironweir /image

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && adduser --system --group --quiet --no-create-home --home /var/lib/ironweir ironweir
COPY --from=build /image/ /
# Logs are the container's output. The dashboard is for whoever is in the container, as on a machine.
RUN ln -sf /dev/stdout /var/log/ironweir/access.log && ln -sf /dev/stderr /var/log/ironweir/error.log \
    && chown ironweir: /var/lib/ironweir /var/cache/ironweir
EXPOSE 80 443 8080
# Requests under way are finished.
STOPSIGNAL SIGQUIT
CMD ["/usr/sbin/ironweir", "-g", "daemon off;"]
