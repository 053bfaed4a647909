# A broker in a container. Not tested in CI: no container engine is available there.
#   docker build -t stratalog .
#   docker run -p 9092:9092 -v stratalog-data:/data stratalog
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=/source/constraints.txt pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11-slim
RUN --mount=from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --find-links /wheels stratalog \
    && useradd --create-home stratalog && mkdir /data && chown stratalog /data
USER stratalog
VOLUME /data
EXPOSE 9092 9100
STOPSIGNAL SIGTERM
ENTRYPOINT ["stratalog", "serve", "--data-dir", "/data", "--listen", "0.0.0.0:9092", "--metrics", "0.0.0.0:9100"]
CMD ["--set", "advertised.listeners=PLAINTEXT://localhost:9092"]
