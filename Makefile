# SPDX-License-Identifier: Apache-2.0 OR MIT

PREFIX ?= /usr/local
DESTDIR ?=
# Where shells look for completions, each in a directory of its own.
COMPLETIONS = $(PREFIX)/share
LIBDIR ?= $(PREFIX)/lib

TARGET = $(or $(CARGO_TARGET_DIR),target)
# Where install finds what is built. RUNNER runs programs of another architecture.
PROGRAMS = $(TARGET)/release
PRELOAD = $(TARGET)/preload
RUNNER =

UNITS = fastpathd.service fastpath-export.service
# Those that `make install` makes in a PREFIX of its own.
DIRECTORIES = bin include lib/pkgconfig lib64/pkgconfig lib/systemd/system share/bash-completion/completions \
	share/containers/oci/hooks.d share/doc share/fish/vendor_completions.d share/man/man1 share/man/man8 share/zsh/site-functions

# Tools that installers leave outside PATH.
ENV = . ./scripts/env &&

all: build lib preload ## build everything that install copies (the default)

build: ## build fastpath, fastpathd and fastpath-nri in target/release
	@./scripts/setup --check build
	$(ENV) cargo build --release

demo: ## install what is missing, build, show the cost of a lost clock path, and a program without and with fastpath
	@./scripts/setup demo
	$(ENV) cargo build --release
	@./demo/run

rehearsal: build ## give a program a slow clock to fix, on a healthy machine (root): opens a shell, and says what to type there
	$(ENV) cargo build --quiet --release --package fastpath-slow-clock
	@./demo/rehearsal

test: ## install what is missing, and test what this machine can show; some 10 minutes on 2 cores
	@./scripts/test

test-all: ## install 2 GB of servers, emulators and languages, and run every test; some 32 minutes on 2 cores
	@./scripts/test --all

lab: ## boot real kernels with lost clock paths in QEMU, and check fastpath in each
	@./scripts/setup all
	$(ENV) ./lab/run

servers: build ## load real servers before, while and after they are attached; prints a table of requests per second
	@./scripts/setup all
	$(ENV) cargo build --quiet --release --package fastpath-slow-clock
	for place in healthy model; do $(ENV) ./tests/servers/run --place $$place --seconds 2 --rounds 7 --count || exit 1; done

slews: build ## slew this machine's clock, as root, and check what programs read meanwhile; ten times as long as in make test-all
	@./tests/slews/run --times 10

long: build ## tests that take hours: broken input for each parser, and other projects' tests under fastpath
	@./scripts/setup long
	$(ENV) ./tests/long/run
	$(ENV) ./tests/proof/run --long
	$(ENV) $(MAKE) --no-print-directory -s -C surgery/preload OUT=$(CURDIR)/target/undefined/tmp/preload \
		CFLAGS="-fsanitize=undefined -fsanitize-undefined-trap-on-error"
	$(ENV) CARGO_TARGET_DIR=target/undefined cargo test --release --package fastpath --test e2e -- preload::
	$(ENV) FASTPATH_TEST_KILLS=1000 FASTPATH_TEST_PIPELINES=5000 cargo test --release --package fastpath --test e2e -- pipeline:: helper_loss::
	$(ENV) FASTPATH_ANCHORS=1000000000 cargo test --release --package fastpath-clock --test limits -- --nocapture
	$(ENV) ./tests/packages/run bookworm trixie
	@$(MAKE) --no-print-directory walks

walks: all ## play what five new users type in a terminal (as root, for a slow clock), and print the transcript
	$(ENV) cargo build --quiet --release --package fastpath-slow-clock && ./tests/walks

static: ## build fastpath as one file that needs no library
	@./scripts/setup --check build
	@$(ENV) ./scripts/static

image: preload ## build an OCI image of this machine's architecture, without packages; prints its path
	@$(ENV) mkdir -p target/image && ./scripts/oci-image target/image/fastpath.oci.tar \
		"$$(dpkg --print-architecture)=$$(dirname "$$(./scripts/static)"),$(abspath $(PRELOAD))" && echo target/image/fastpath.oci.tar

bench: build ## compare the clock paths of this machine
	./target/release/fastpath bench

bench-attach: build ## measure how long attach and detach stop processes of 100 and of 1,000 threads
	@$(MAKE) --no-print-directory -s -C tests/programs
	@./scripts/bench-attach

bench-run: build ## measure what run adds to the start of a program, and to the programs that it executes
	@./scripts/bench-run

soak: build ## serve programs by a daemon for HOURS (1), and check that nothing grows, no clock goes back, and no program is refused
	@./scripts/soak $(or $(HOURS),1)

torture: build ## 1,000 cycles of attach and detach on each of sixteen programs that check their own work
	@./scripts/setup test
	$(ENV) FASTPATH_ATTACH_CYCLES=1000 cargo test --release --package fastpath attach_torture

hostile: build ## measure how soon fastpathd answers a user while another one attacks it; on a machine without other work
	@./scripts/setup test
	$(ENV) FASTPATH_MEASURE_BYSTANDER=1 cargo test --release --package fastpath --test e2e bystander -- --nocapture

bench-hosts: ## measure clock reads, identities and random bytes of a sandbox's guest, by libc and by the trap
	@./scripts/setup --check build
	$(ENV) cargo build --release --package fastpath-sandbox && $(MAKE) --no-print-directory -s -C examples && \
		"$${CARGO_TARGET_DIR:-target}/release/sandbox" "target/examples/$$(uname -m)/changes-glibc"

docs: ## build the documentation as a book, in target/book; installs mdBook in target/tools if there is none
	@for page in README.md $$(sed -nE 's/^\| \[[^]]*\]\(([^).]*\.md)\).*/\1/p' docs/README.md) \
		$$(sed -nE 's/^- .*\((.*)\)$$/design\/\1/p' docs/design/README.md); do \
		echo "- [$$(sed -n '1s/^# //p' docs/$$page)]($$page)"; done >docs/SUMMARY.md
	@$(ENV) PATH="$$PATH:$(CURDIR)/target/tools/bin" && { command -v mdbook >/dev/null || \
		cargo install --quiet --locked --root target/tools mdbook; } && mdbook build docs

lint: ## run the formatters and lints alone
	@./scripts/lint

setup: ## install what building, demo and tests need, and nothing else
	@./scripts/setup test

lib: ## build libfastpath, for hosts of guests, in target/lib
	@./scripts/setup --check build
	@./scripts/lib

preload: ## build libfastpath-preload.so, for containers that forbid ptrace, in target/preload
	@./scripts/setup --check build
	@$(ENV) $(MAKE) --no-print-directory -s -C surgery/preload OUT=$(abspath $(PRELOAD))

# Compiles nothing: root has no reason to, and may have no compiler.
install: install-programs ## install fastpath and its libraries into PREFIX (/usr/local), as `make` built them
	@PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR) ./scripts/lib install

install-programs:
	@for file in $(PROGRAMS)/fastpath $(PROGRAMS)/fastpathd $(PROGRAMS)/fastpath-nri $(PRELOAD)/libfastpath-preload.so; do \
		[ -e $$file ] || { echo "make install: there is no $$file; run \`make\` first, as the user who builds" >&2; exit 1; }; done
	install -D -m 755 $(PROGRAMS)/fastpath $(DESTDIR)$(PREFIX)/bin/fastpath
	install -D -m 755 $(PROGRAMS)/fastpathd $(DESTDIR)$(PREFIX)/bin/fastpathd
	install -D -m 755 $(PROGRAMS)/fastpath-nri $(DESTDIR)$(PREFIX)/bin/fastpath-nri
	install -D -m 644 deploy/fastpath-policy.toml $(DESTDIR)$(PREFIX)/share/doc/fastpath/policy.toml
	./scripts/install-pages $(DESTDIR)$(PREFIX)/share/doc/fastpath
	for unit in $(UNITS); do sed 's|/usr/local/bin|$(PREFIX)/bin|' deploy/systemd/$$unit | \
		install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; done
	sed 's|/usr/local/bin|$(PREFIX)/bin|' deploy/oci/fastpath.json | \
		install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/containers/oci/hooks.d/fastpath.json
	$(RUNNER) $(PROGRAMS)/fastpath man $(DESTDIR)$(PREFIX)/share/man/man1
	$(RUNNER) $(PROGRAMS)/fastpathd --man $(DESTDIR)$(PREFIX)/share/man/man8
	$(RUNNER) $(PROGRAMS)/fastpath-nri --man $(DESTDIR)$(PREFIX)/share/man/man8
	install -d $(DESTDIR)$(COMPLETIONS)/bash-completion/completions $(DESTDIR)$(COMPLETIONS)/zsh/site-functions \
		$(DESTDIR)$(COMPLETIONS)/fish/vendor_completions.d
	@for program in fastpath "fastpathd --" "fastpath-nri --"; do set -- $$program; \
		for to in bash:bash-completion/completions/$$1 zsh:zsh/site-functions/_$$1 fish:fish/vendor_completions.d/$$1.fish; do \
		$(RUNNER) $(PROGRAMS)/$$1 $${2-}completions $${to%%:*} >$(DESTDIR)$(COMPLETIONS)/$${to#*:} || exit 1; done; done
	install -D -m 755 $(PRELOAD)/libfastpath-preload.so $(DESTDIR)$(LIBDIR)/libfastpath-preload.so

packages: ## build debs, rpms, static tarballs, an OCI image, a Helm chart, and their SBOM, in target/packages; see docs/install.md
	@./scripts/setup --check packages
	@./scripts/make-packages

uninstall: ## remove what install put into PREFIX; processes that are served keep running; see docs/install.md
	rm -f $(DESTDIR)$(PREFIX)/bin/fastpath $(DESTDIR)$(PREFIX)/bin/fastpathd $(DESTDIR)$(PREFIX)/bin/fastpath-nri \
		$(DESTDIR)$(PREFIX)/share/doc/fastpath/policy.toml \
		$(UNITS:%=$(DESTDIR)$(PREFIX)/lib/systemd/system/%) \
		$(DESTDIR)$(PREFIX)/share/containers/oci/hooks.d/fastpath.json \
		$(DESTDIR)$(PREFIX)/share/man/man1/fastpath.1 $(DESTDIR)$(PREFIX)/share/man/man1/fastpath-*.1 \
		$(DESTDIR)$(PREFIX)/share/man/man8/fastpathd.8 \
		$(DESTDIR)$(PREFIX)/share/man/man8/fastpath-nri.8 $(DESTDIR)$(PREFIX)/share/man/man8/fastpath-nri-oci-hook.8 \
		$(foreach program,fastpath fastpathd fastpath-nri,$(addprefix $(DESTDIR)$(COMPLETIONS)/,\
		bash-completion/completions/$(program) zsh/site-functions/_$(program) fish/vendor_completions.d/$(program).fish)) \
		$(DESTDIR)$(LIBDIR)/libfastpath-preload.so
	@PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR) ./scripts/lib uninstall
	@./scripts/install-pages --remove $(DESTDIR)$(PREFIX)/share/doc/fastpath
	@rmdir $(DESTDIR)$(PREFIX)/share/doc/fastpath 2>/dev/null || true
	@$(if $(filter $(PREFIX),/usr /usr/local),,cd $(DESTDIR)$(PREFIX) && rmdir -p $(DIRECTORIES) 2>/dev/null || true)

clean: ## remove everything that was built
	rm -rf target

help: ## print this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1 \2/p' Makefile | awk '{ \
		line = sprintf("make %-15s", $$1); \
		for (i = 2; i <= NF; i++) { \
			if (length(line " " $$i) > 80) { print line; line = sprintf("%20s", "") } \
			line = line " " $$i \
		} \
		print line }'

.PHONY: all build demo rehearsal test test-all docs image lab servers slews long walks static bench bench-attach bench-hosts bench-run torture soak hostile lib preload lint setup install install-programs packages uninstall clean help
