# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Every command of the project, one line each; the work is in scripts/. (The kernel module's own rules are in Kbuild.)
# Needs root on Debian 12 or 13; installs and fetches what it lacks.

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-debug check bench bench-engine sim sim-device mutants fuzz coverage judges conformance faults pictures users vm modules tools clean distclean

help:    ## this list
	@sed -nE 's/^([a-z-]+): *[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

run:     ## build everything, boot a guest, show the device and a table of perftest results
	@scripts/run

test:    ## all tests, ending with `N passed, N failed`; `make test SUITES='unit guest'`: only those of scripts/test --list
	@scripts/test $(SUITES)

test-long: ## the same with the long form of each suite, and what is too long for every day: scripts/test --long
	@scripts/test --long $(SUITES)

test-debug: ## the suites that matter there on the debug kernel, which is built first (an hour): scripts/test --debug
	@scripts/test --debug $(SUITES)

check:   ## formatting, clippy in both builds, ABI layout and version, SPDX, unsafe walls, dependencies, links, shellcheck
	@scripts/check-style

bench:   ## Verbena and rxe in turns in one guest and between two, the flight recorder off and on, the engine alone: build/bench*.json, build/bench.svg
	@scripts/bench

bench-engine: ## the transport alone, on one core: message rates, bandwidth against memcpy, 1 and 10,000 QPs; two engines over a wire
	@scripts/bench-engine

sim:     ## the simulated network: `make sim SEEDS=N` runs N seeds and goes on where it stopped, `make sim SEED=K` shows one
	@if [ -n "$(SEED)" ]; then exec scripts/sim --seed "$(SEED)"; else exec scripts/sim --seeds "$(or $(SEEDS),10000)"; fi

sim-device: ## programs on the whole device, each outcome compared with an oracle: `make sim-device SEEDS=N`, `make sim-device SEED=K`
	@if [ -n "$(SEED)" ]; then exec scripts/sim --device --seed "$(SEED)"; else exec scripts/sim --device --seeds "$(or $(SEEDS),10000)"; fi

mutants: ## deliberate bugs, each of which the simulation or a test must find; `make mutants MADE=N`: N that nobody wrote
	@if [ -n "$(MADE)" ]; then exec scripts/mutants --made "$(MADE)" --sample "$(or $(SAMPLE),1)"; else exec scripts/mutants; fi

fuzz:    ## `make fuzz RUNS=N` runs each fuzz target until it has run N times with this source
	@scripts/fuzz --runs "$(or $(RUNS),1000000)"

coverage: ## lines of the transport that its tests reach, per file
	@scripts/coverage

conformance: ## each rule of the contract, with the tests that show it, beside rxe: build/conformance.txt, build/conformance.html
	@scripts/conformance
judges:  ## captures of every opcode, judged by tshark and scapy
	@scripts/judges

faults:  ## every completion status and asynchronous event, by rules under stock programs, as a table: build/faults.json
	@scripts/faults

pictures: ## the report of each scenario as a headless browser shows it: Documentation/pictures
	@scripts/browser pictures

users:   ## programs and suites that others wrote, on Verbena and on rxe, as a table: build/users.html; `make users ONLY=ucx`, `SOURCES=DIR`
	@scripts/users $(if $(SOURCES),--sources "$(SOURCES)") $(ONLY)

vm:      ## a shell in a guest; `make vm CMD='...'` runs a command (see scripts/vm --help)
	@if [ -n "$$CMD" ]; then exec scripts/vm -- "$$CMD"; else exec scripts/vm; fi

modules: ## the kernel modules, into build/module; KDIR=tree: against another kernel, into build/module-kdir
	@KDIR="$(KDIR)" scripts/build module

tools:   ## NIC, provider, command line tool, guest tests, into build/cargo
	@scripts/build tools

clean:   ## remove build/, what this checkout has made (what was costly to make stays in ~/.cache/verbena)
	@scripts/clean

distclean: ## remove that, too: downloads and what all checkouts share; says how much each was
	@scripts/clean --all

export CMD
