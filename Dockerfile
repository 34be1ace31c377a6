# Runs the demo on the CPU, as an ordinary user:
#   docker build -t supermax . && docker run --rm --init supermax
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE constraints.txt ./
COPY src src
# Every dependency comes as a wheel, so no compiler is needed.
RUN python -m venv /opt/supermax \
    && /opt/supermax/bin/python -m pip install --no-cache-dir -c constraints.txt \
       --extra-index-url https://download.pytorch.org/whl/cpu '.[training]'

# What pip and the build left behind stays in the first stage.
FROM python:3.12-slim
RUN useradd --create-home --uid 1000 supermax
COPY --from=build /opt/supermax /opt/supermax
COPY examples/demo.py /opt/supermax/demo.py
ENV PATH=/opt/supermax/bin:$PATH
USER supermax
WORKDIR /home/supermax
CMD ["python", "/opt/supermax/demo.py"]
