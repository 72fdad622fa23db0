# A service of one model without torch: docker build -t ade . && docker run -p 8000:8000 -v "$PWD/model:/model:ro" ade
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY ade ade
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)[serve]" && rm -r /wheels /tmp/constraints.txt
RUN useradd --system --uid 10001 ade
USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["ade", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/model"]
