# HAProxy that decides itself: the official image with the module for its Lua, from the .deb. The
# README beside this file says how to build and run it, in the folder of the project.
FROM haproxy:3.4
# amd64 or arm64, which the builder sets.
ARG TARGETARCH=amd64
USER root
COPY target/packages/gcra-spoa_*_${TARGETARCH}.deb /tmp/gcra-spoa.deb
RUN dpkg --install /tmp/gcra-spoa.deb && rm /tmp/gcra-spoa.deb
COPY haproxy/in-process/in-process.cfg /usr/local/etc/haproxy/haproxy.cfg
USER haproxy
