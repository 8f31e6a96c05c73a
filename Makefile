# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Every command of the project, one line each; the work is in scripts/. (The kernel module's own rules are in Kbuild.)
# Needs root on Debian 12 or 13; installs and fetches what it lacks.

.DEFAULT_GOAL := help
.PHONY: help run test check bench vm modules tools clean

help:    ## this list
	@sed -nE 's/^([a-z]+): *[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

run:     ## build everything, boot a guest, show the device and a table of perftest results
	@scripts/run

test:    ## all tests: style, unit, simulation, loom, module build, guest suite; ends with `N passed, N failed`
	@scripts/test

check:   ## formatting, clippy in both builds, ABI layout and version, SPDX, unsafe walls, dependencies, links
	@scripts/check-style

bench:   ## Verbena and rxe alternating in one guest, and the engine alone: build/bench.json, build/bench.svg
	@scripts/bench

vm:      ## a shell in a guest; `make vm CMD='...'` runs a command (see scripts/vm --help)
	@if [ -n "$$CMD" ]; then exec scripts/vm -- "$$CMD"; else exec scripts/vm; fi

modules: ## the kernel modules, into build/module; KDIR=tree builds against another kernel
	@KDIR="$(KDIR)" scripts/build module

tools:   ## NIC, provider, command line tool, guest tests, into build/cargo
	@scripts/build tools

clean:   ## remove build/ (what was costly to make stays in ~/.cache/verbena)
	rm -rf build

export CMD
