#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# usage: findings/srpt-initiator-name.sh
#
# Software: ib_srpt and ib_srp of Linux 7.2.12, over soft RoCE (rxe).
# Behaviour: an SRP target identifies an initiator that connects by rdma_cm by the target's address, not by the initiator's. The list of allowed
# initiators (the directories of acls in configfs) must contain the target's own address; an entry with the initiator's address allows no login. The
# cause is in srpt_rdma_cm_req_recv, which takes the source address of the connection's ID. At the passive side that is the local address.
# Seen: with an entry for the initiator, 10.1.0.2, the login fails, and the kernel logs "Rejected login for initiator 10.1.0.1". With an entry for
# the target, 10.1.0.1, and none for 10.1.0.2 it succeeds.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
session "$@"
temporary
# shellcheck disable=SC2016 # the guest expands it
guest 'set -e
ip addr add 10.1.0.2/24 dev "$RXE_NETDEV"
gid-index rxe0 0a01:0002 >/dev/null
modprobe -a ib_srpt ib_srp sd_mod
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/target
mkdir -p core/rd_mcp_0/disk srpt
echo rd_pages=1024 >core/rd_mcp_0/disk/control
echo 1 >core/rd_mcp_0/disk/enable
echo 5555 >srpt/discovery_auth/rdma_cm_port
name=$(cut -d : -f 5-8 /sys/class/infiniband/rxe0/ports/1/gids/0)
port=$PWD/srpt/$name/$name
mkdir -p "$port/lun/lun_0"
ln -s "$PWD/core/rd_mcp_0/disk" "$port/lun/lun_0/"
echo 1 >"$port/enable"
guid=$(cat /sys/module/ib_srpt/parameters/srpt_service_guid)
for entry in 10.1.0.2 10.1.0.1; do
	mkdir "$port/acls/$entry" "$port/acls/$entry/lun_0"
	ln -s "$port/lun/lun_0" "$port/acls/$entry/lun_0/"
	if echo "id_ext=$guid,initiator_ext=1,ioc_guid=$guid,src=10.1.0.2,dest=10.1.0.1:5555" >/sys/class/infiniband_srp/srp-rxe0-1/add_target
	then echo "entry $entry: let in"; else echo "entry $entry: refused"; fi 2>&1
	[ "$entry" = 10.1.0.1 ] || { rm "$port/acls/$entry/lun_0/lun_0"; rmdir "$port/acls/$entry/lun_0" "$port/acls/$entry"; }
done
dmesg | grep -o "Rejected login for initiator.*" || true
sync'
expect "$said" '^entry 10.1.0.2: refused$' "an entry with the initiator's address allows its login"
expect "$said" '^Rejected login for initiator 10\.1\.0\.1:' "the kernel logs another name of the refused initiator"
expect "$said" '^entry 10.1.0.1: let in$' "an entry with the target's address allows no login"
