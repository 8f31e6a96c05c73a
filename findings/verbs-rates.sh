#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/verbs-rates.sh
#
# Software: libibverbs 56.1; no device.
# Behaviour: a static rate of "100 Gb/s" means no limit. mbps_to_ibv_rate knows the raw rates of links to the megabit, so IBV_RATE_100_GBPS is
# 103125 Mb/s. For any number that is not in its list it returns IBV_RATE_MAX, which is 0 and means no limit, and nothing distinguishes the two
# cases. 14000, 25000, 50000, 56000, 100000, 200000, 400000 and 800000 are not in the list; 10000 and 40000 are. And ibv_rate_to_mult, which returns
# a rate as a multiple of 2.5 Gb/s, returns -1 for eight rates that libibverbs itself defines, among them IBV_RATE_14_GBPS, _56_, _100_ and _200_.
# Seen: 10000 -> 3 (IBV_RATE_10_GBPS), 40000 -> 7, 103125 -> 16 (IBV_RATE_100_GBPS); 25000, 50000, 100000, 200000, 400000 -> 0;
# ibv_rate_to_mult(16) -> -1.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root python3 libibverbs1=56.1-1
cat >"$work/share/rates.py" <<'PY'
import ctypes

lib = ctypes.CDLL("libibverbs.so.1")
for mbps in (10000, 40000, 103125, 14000, 25000, 50000, 56000, 100000, 200000, 400000, 800000):
    print(f"{mbps} Mb/s: {lib.mbps_to_ibv_rate(mbps)}")
for rate in range(2, 25):
    print(f"rate {rate}: {lib.ibv_rate_to_mbps(rate)} Mb/s, multiple {lib.ibv_rate_to_mult(rate)}")
PY
said=$(in_root python3 /share/rates.py)
printf '%s\n' "$said"
for known in '10000 Mb/s: 3' '40000 Mb/s: 7' '103125 Mb/s: 16' 'rate 16: 103125 Mb/s, multiple -1'; do expect "$said" "^$known$" "the output has no line '$known'"; done
for mbps in 14000 25000 50000 56000 100000 200000 400000 800000; do expect "$said" "^$mbps Mb/s: 0$" "$mbps Mb/s has a rate"; done
[ "$(grep -c '^rate .* multiple -1$' <<<"$said")" = 8 ] || changed "another number of rates has no multiple"
