# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The commands of the project, one line each. The work is done in scripts/. (The kernel module's own rules are in Kbuild.)
# Needs root on Debian 12 or 13. Installs and fetches missing packages.

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-debug check bench bench-engine sim sim-device mutants fuzz coverage judges conformance faults pictures users vm modules tools clean distclean

help:    ## print this list
	@sed -nE 's/^([a-z-]+): *[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

run:     ## build everything, boot a guest, print the device and a table of perftest results
	@scripts/run

test:    ## all tests, ending with `N passed, N failed`; `make test SUITES='unit guest'`: only these (scripts/test --list)
	@scripts/test $(SUITES)

test-long: ## all tests in full, and suites that are too long for every day: scripts/test --long
	@scripts/test --long $(SUITES)

test-debug: ## the suites for the debug kernel, which is built first (an hour): scripts/test --debug
	@scripts/test --debug $(SUITES)

check:   ## formatting, clippy in both builds, ABI layout and version, SPDX, unsafe walls, dependencies, links, shellcheck
	@scripts/check-style

bench:   ## compare Verbena and rxe, the flight recorder off and on, the engine alone: build/bench*.json, build/bench.svg
	@scripts/bench

bench-engine: ## the transport on one core: message rates, bandwidth against memcpy, 1 and 10,000 QPs; two engines over a wire
	@scripts/bench-engine

sim:     ## simulate a network: `make sim SEEDS=N` runs N seeds, or continues an earlier run; `make sim SEED=K` traces one
	@if [ -n "$(SEED)" ]; then exec scripts/sim --seed "$(SEED)"; else exec scripts/sim --seeds "$(or $(SEEDS),10000)"; fi

sim-device: ## simulate programs on the whole device, compared with an oracle: `make sim-device SEEDS=N`, `make sim-device SEED=K`
	@if [ -n "$(SEED)" ]; then exec scripts/sim --device --seed "$(SEED)"; else exec scripts/sim --device --seeds "$(or $(SEEDS),10000)"; fi

mutants: ## deliberate bugs that the simulation or a test must find; `make mutants MADE=N`: N generated ones
	@if [ -n "$(MADE)" ]; then exec scripts/mutants --made "$(MADE)" --sample "$(or $(SAMPLE),1)"; else exec scripts/mutants; fi

fuzz:    ## `make fuzz RUNS=N` runs each fuzz target until it has run N times with this source
	@scripts/fuzz --runs "$(or $(RUNS),1000000)"

coverage: ## lines of the transport that its tests run, for each file
	@scripts/coverage

conformance: ## each rule of the contract with its tests, compared with rxe: build/conformance.txt, build/conformance.html
	@scripts/conformance
judges:  ## captures of every opcode, checked by tshark and scapy
	@scripts/judges

faults:  ## a table of every completion status and asynchronous event, by rules under stock programs: build/faults.json
	@scripts/faults

pictures: ## pictures of the report of each scenario, from a headless browser: Documentation/pictures
	@scripts/browser pictures

users:   ## a table of programs and suites of other projects on Verbena and on rxe: build/users.html; `make users ONLY=ucx`, `SOURCES=DIR`
	@scripts/users $(if $(SOURCES),--sources "$(SOURCES)") $(ONLY)

vm:      ## a shell in a guest; `make vm CMD='...'` runs a command (see scripts/vm --help)
	@if [ -n "$$CMD" ]; then exec scripts/vm -- "$$CMD"; else exec scripts/vm; fi

modules: ## the kernel modules, into build/module; KDIR=tree: against another kernel, into build/module-kdir
	@KDIR="$(KDIR)" scripts/build module

tools:   ## NIC, provider, command line tool, guest tests, into build/cargo
	@scripts/build tools

clean:   ## remove build/, the outputs of this checkout (the cache, ~/.cache/verbena, stays)
	@scripts/clean

distclean: ## remove build/ and the cache, with downloads and outputs that all checkouts share
	@scripts/clean --all

export CMD
