# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Transfer engines of inference servers, without GPUs: Mooncake's over verbs, nixl's over UCX."""
import os

from row import Figure, Row, suite
from ucx import ENV

# nixl needs UCX 1.19 or newer, which its wheel has.
ENGINES = {"mooncake": "MC_GID_INDEX=$GID", "nixl": f"{ENV} UCX_TLS=rc_verbs,ud_verbs NIXL_PLUGIN_DIR=%s/nixl_cu12.libs/nixl"}


def move(place, engine, how):
    path = suite(engine)
    env = ENGINES[engine].replace("%s", path)
    program = f"env PYTHONPATH={path} {env} python3 {os.path.dirname(__file__)}/engines.py {engine}"
    out = place.served(f"{program} serve $ADDRESS PORT", f"{program} {how} $ADDRESS $SERVER PORT 2>&1", 180)
    return Figure.of(out, r"^right, (\d+) bytes/s", "bytes/s")


def rows():
    return [Row(f"ai/{engine}_{how}", engine, engine, lambda p, e=engine, h=how: move(p, e, h)) for engine in ENGINES for how in ("write", "read")]
