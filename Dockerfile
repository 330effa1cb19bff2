# The image of Limitkeeper: a static binary without a shell, as user 65532.
#
#	docker build --build-arg VERSION="$(tools/version)" -t limitkeeper .
#	docker run --read-only -v limitkeeper:/var/lib/limitkeeper -p 8443:8443 limitkeeper
#
# deploy/compose.yaml runs the image with Prometheus and Grafana. TestImage in deploy runs these instructions without a builder.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION
RUN make build VERSION=$VERSION OUT=image/usr/bin/limitkeeper
RUN mkdir -p data image/etc/limitkeeper && cp deploy/docker/Caddyfile image/etc/limitkeeper/

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /src/image /
COPY --from=build --chown=65532:65532 /src/data /var/lib/limitkeeper
ENV XDG_DATA_HOME=/var/lib/limitkeeper XDG_CONFIG_HOME=/var/lib/limitkeeper
USER 65532:65532
VOLUME /var/lib/limitkeeper
# 8080 and 8443 have the sites. 8081 has health and metrics, for the network of the container only.
EXPOSE 8080 8443 8081
HEALTHCHECK --start-period=30s --interval=10s --timeout=5s CMD ["limitkeeper", "health", "http://127.0.0.1:8081/functions/v1/health/ready"]
ENTRYPOINT ["limitkeeper"]
CMD ["run", "--config", "/etc/limitkeeper/Caddyfile"]
