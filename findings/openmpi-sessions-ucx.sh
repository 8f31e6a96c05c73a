#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/openmpi-sessions-ucx.sh
#
# Software: Open MPI 5.0.7, UCX 1.18.1, mpi4py 4.0.3; no device, both ranks on one host.
# Behaviour: over UCX, Open MPI's default for RDMA, a program can open an MPI 4 session and query it, but cannot use it. MPI_Session_init succeeds,
# and the session lists its process sets and makes groups of them. But MPI_Comm_create_from_group, the only way from a group to a communicator,
# reports that the operation is not supported. With Open MPI's own ob1 the same program passes. So MPI_Session_init does not show that sessions
# are unusable. (mpi4py's own tests fail for this reason: github.com/open-mpi/ompi issue 12566.)
# Seen: "session: 3 process sets, group of 2" over both; "MPI_ERR_UNSUPPORTED_OPERATION" over ucx, "communicator of 2" over ob1.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
lists trixie
root openmpi-bin=5.0.7-1 libucx0=1.18.1+ds-2+b1 python3-mpi4py=4.0.3-4
cat >"$work/share/sessions.py" <<'PY'
import os
import sys

import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
text = f"session: {session.Get_num_psets()} process sets, group of {group.size}; "
try:
    communicator = MPI.Intracomm.Create_from_group(group, "finding")
    text += f"communicator of {communicator.size}"
    communicator.Free()
except MPI.Exception as error:
    text += error.Get_error_string()
# Each rank writes its own file, because mpirun may mix the lines of two ranks.
with open(f"/share/{sys.argv[1]}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as f:
    print(f"{sys.argv[1]}: {text}", file=f)
group.Free()
session.Finalize()
PY
for pml in ucx ob1; do
	in_root env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=sm,self OMPI_MCA_opal_common_ucx_tls=any \
		OMPI_MCA_opal_common_ucx_devices=any timeout 120 mpirun --oversubscribe -np 2 --mca pml "$pml" --mca btl self,sm \
		python3 /share/sessions.py "$pml" >"$work/mpi.log" 2>&1 || { cat "$work/mpi.log" >&2; die "mpirun failed over $pml"; }
done
said=$(cat "$work"/share/{ucx,ob1}.{0,1})
printf '%s\n' "$said"
[ "$(grep -c '^ucx: session: 3 process sets, group of 2; MPI_ERR_UNSUPPORTED_OPERATION' <<<"$said")" = 2 ] || changed "the result over UCX differs"
[ "$(grep -c '^ob1: session: 3 process sets, group of 2; communicator of 2$' <<<"$said")" = 2 ] || changed "the result over ob1 differs"
