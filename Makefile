# Needs make and Python 3.11 or newer with pip; each target sets up .venv itself, once.
# The default is python3; to use another one: make test PYTHON=python3.12

DATA ?= ../shared/data

.PHONY: help demo test test-serve test-cluster test-remote coverage check docs wheel models study bench torture audit lock clean

help:
	@echo "make demo    pre-train, fine-tune and report on this machine's Python documentation"
	@echo "make test    all tests (some: scripts/test tests/finetuning -k report)"
	@echo "make test-serve  other projects' clients, a browser and 10,000 connections against a running server; minutes"
	@echo "make test-cluster  the tests on a Ray cluster of several nodes on this machine, a few minutes"
	@echo "make test-remote  text and corpora at addresses, with a server of this machine that speaks S3's protocol"
	@echo "make check   style, types, spelling, the rules of the source tree, and the documentation"
	@echo "make docs    build the documentation into docs/_build/html"
	@echo "make coverage  all tests with the share of lines that they run"
	@echo "make wheel   build dist/firth-*.whl"
	@echo "make models  rebuild every model of the recorded results (DATA=../shared/data)"
	@echo "make study   fine-tune the shipped models on seventeen tasks, many hours on two cores; what is done is kept"
	@echo "make bench   measure this machine beside other libraries, more than an hour; writes docs/benchmarks.md"
	@echo "make torture kill, fill the disk and damage files, hours on two cores, resumable; writes docs/robustness.md"
	@echo "make audit   look up known vulnerabilities of the pinned dependencies, where a network allows it"
	@echo "make lock    renew the hashes of what the container installs, from pip's package index"
	@echo "make clean   remove caches and build outputs; .venv, runs/ and models/ stay"

demo:
	@scripts/setup report
	.venv/bin/firth demo

test:
	@scripts/setup report,track,dev,parity,onnx,mt,convert,vectors,data,serve,clients-test
	scripts/test
	scripts/test_fastai

test-serve:
	@scripts/setup report,dev,parity,serve,clients-test,serve-test
	scripts/test_serve

test-cluster:
	@scripts/setup report,dev,serve,cluster
	@# At exit, outside every test, Python warns once more about what Ray leaves running.
	FIRTH_TEST_CLUSTER=1 OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/cluster \
		-W ignore::pytest.PytestUnraisableExceptionWarning

test-remote:
	@scripts/setup dev,data,remote,remote-test
	scripts/test tests/test_remote.py

coverage:
	@scripts/setup report,track,dev,parity,onnx,mt,convert,vectors,data,serve,clients-test
	scripts/coverage

check:
	@scripts/setup report,track,dev,parity,onnx,mt,convert,vectors,data,serve,clients-test,docs
	scripts/check

docs:
	@scripts/setup docs
	scripts/docs

wheel:
	@scripts/setup report
	.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

models:
	@scripts/setup report
	DATA="$(DATA)" scripts/models

study:
	@scripts/setup report
	.venv/bin/firth study finetuning --data "$(DATA)" --out runs/study

bench:
	@scripts/setup report,bench
	DATA="$(DATA)" scripts/bench

torture:
	@scripts/setup report,dev
	.venv/bin/python tests/torture/campaign.py $(if $(PARTS),--parts $(PARTS)) $(if $(MINUTES),--minutes $(MINUTES))

audit:
	@scripts/setup report,dev
	.venv/bin/python scripts/audit.py

lock:
	@scripts/setup report,dev,serve
	.venv/bin/python scripts/lock.py

clean:
	rm -rf build dist docs/_build htmlcov .coverage* .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
