# An image with lmtool, from its wheel, for CPUs; with CUDA, for NVIDIA GPUs:
#
#     docker build -t lmtool .
#     docker build -t lmtool:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.13-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.13-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# the kernels in C are compiled at their first use, and those of torch.compile
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' /tmp/constraints.txt)"
COPY --from=wheel /dist /tmp/dist
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /tmp/dist/*.whl)[serve]"
# with `docker run --user` another user than this one, who has no name, writes runs and the cache
RUN useradd --uid 1000 lmtool && mkdir -m 1777 /work /cache
ENV LMTOOL_CACHE=/cache USER=lmtool
WORKDIR /work
USER 1000
ENTRYPOINT ["lmtool"]
