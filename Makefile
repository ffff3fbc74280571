# SPDX-License-Identifier: Apache-2.0 OR MIT

PREFIX ?= /usr/local
DESTDIR ?=

# Tools that installers leave outside PATH.
ENV = . ./scripts/env &&

build: ## build target/release/fastpath (the default)
	@./scripts/setup --check build
	$(ENV) cargo build --release

demo: ## install what is missing, build, show what a lost clock path costs and fastpath giving it back
	@./scripts/setup demo
	$(ENV) cargo build --release
	@./demo/run

test: ## install what is missing, run every lint and test
	@./scripts/test

bench: build ## compare the clock paths of this machine
	./target/release/fastpath bench

lint: ## formatting and lints alone
	@./scripts/lint

setup: ## install what building, demo and tests need, and nothing else
	@./scripts/setup test

install: build ## install into PREFIX (/usr/local)
	install -D -m 755 target/release/fastpath $(DESTDIR)$(PREFIX)/bin/fastpath

clean: ## remove everything that was built
	rm -rf target

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1	\2/p' Makefile | expand -t 16

.PHONY: build demo test bench lint setup install clean help
