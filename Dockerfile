# The driver's image: `docker build .`, `podman build .` or, where no registry can be reached, hack/image.
# What is in it and why: docs/image.md.
#
# Targets: `driver` (the last, so the default) is what clusters run. `simulator` simulates GPUs for tests;
# nothing of it is in `driver`.
#
# Everything is put together on the builder's own architecture (downloaded, unpacked, compiled to byte code,
# none of it run), so that another one needs no emulation. The base is written out in each FROM, where Dependabot
# finds it.

FROM --platform=$BUILDPLATFORM docker.io/library/debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f AS build
ARG TARGETARCH
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3.13-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3.13 -m venv /opt/python
WORKDIR /src

# The operating system's part: Debian packages without Debian's package manager.
COPY hack/image/rootfs hack/image/packages ./hack/image/
RUN hack/image/rootfs /rootfs "$TARGETARCH" hack/image/packages

# Locked Python packages, each with its hash. Behind a proxy that reads TLS, the secret `ca` is its bundle.
COPY hack/image/runtime.lock hack/image/build.lock hack/image/site ./hack/image/
RUN --mount=type=secret,id=ca hack/image/site packages /rootfs "$TARGETARCH" hack/image

# The driver, as a wheel: what is not in the wheel is not in the image.
COPY pyproject.toml README.md LICENSE ./
COPY api ./api
COPY dra_driver ./dra_driver
RUN hack/image/site driver /rootfs . \
 && hack/image/site byte-code /rootfs \
 && hack/image/site simulator /simulator dra_driver/simulator


# Simulated GPUs compile their libnvidia-ml.so.1 where they run, so this one has a compiler and a shell.
FROM docker.io/library/debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f AS simulator
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev python3.13 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /rootfs/usr/bin/dra-driver /usr/bin/dra-driver
COPY --from=build /rootfs/usr/local/lib/python3.13 /usr/local/lib/python3.13
COPY --from=build /simulator /
ENTRYPOINT ["dra-driver"]


FROM scratch AS driver
ARG VERSION=unknown REVISION=unknown
LABEL org.opencontainers.image.title="dra-driver" \
      org.opencontainers.image.description="Kubernetes DRA driver for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /rootfs /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    # Where NVIDIA's runtime is the node's default, it injects GPUs into whatever does not refuse them.
    NVIDIA_VISIBLE_DEVICES=void
# The kubelet plugin and the MPS supervisor make sockets and device nodes on the node, so root is what a
# DaemonSet that says nothing else must get. Every other command runs as any user: nothing here is owned
# by, or readable to, root alone.
USER 0:0
ENTRYPOINT ["dra-driver"]
