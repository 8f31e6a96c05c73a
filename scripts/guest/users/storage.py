# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Block devices and files over RDMA: NVMe, iSER, SRP and NFS with the kernel's code at both ends; targets that are programs: iSER of tgt, 9P of diod.

Tests of each: 256 MiB are written and read back; the disk is attached and detached 20 times; the target is stopped and started under a load
that compares every byte (not for 9P, whose client does not reconnect). Targets are set up by commands for bash, because they may be in another
guest. Also libiscsi's tests, whose initiator is a program.
"""
import errno
import glob
import hashlib
import os
import re
import time

import perftest
from perftest import Failed
from row import SUITES, Figure, Part, Row, suite
from storage_load import Load, until

MIB = 256
CONFIGFS = "mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; cd /sys/kernel/config"
# A RAM disk of the SCSI target.
LUN = f"mkdir -p target/core/rd_mcp_0/disk; echo rd_pages={MIB * 256} >target/core/rd_mcp_0/disk/control; echo 1 >target/core/rd_mcp_0/disk/enable"
NO_LUN = "rmdir target/core/rd_mcp_0/disk target/core/rd_mcp_0"
IQN = "iqn.2026-11.verbena:disk"


def killed(program):
    """Returns commands that kill a program, and fail if it does not end."""
    return f"pkill -9 -x {program}; for i in $(seq 50); do pgrep -x {program} >/dev/null || break; sleep 0.1; done; ! pgrep -x {program} >/dev/null"


class Nvme:
    package, program = "nvme-cli", "NVMe over RDMA (nvme-cli)"
    up = f"""modprobe -a nvmet nvmet_rdma; modprobe brd rd_nr=1 rd_size={MIB * 1024}; {CONFIGFS}/nvmet
        mkdir -p subsystems/disk/namespaces/1 ports/1; echo 1 >subsystems/disk/attr_allow_any_host
        echo /dev/ram0 >subsystems/disk/namespaces/1/device_path; echo 1 >subsystems/disk/namespaces/1/enable; cd ports/1
        echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo $SERVER >addr_traddr; echo 4420 >addr_trsvcid"""
    start = "ln -s /sys/kernel/config/nvmet/subsystems/disk /sys/kernel/config/nvmet/ports/1/subsystems/"
    stop = "rm /sys/kernel/config/nvmet/ports/1/subsystems/disk"
    down = """cd /sys/kernel/config/nvmet; rm -f ports/1/subsystems/disk; echo 0 >subsystems/disk/namespaces/1/enable
        rmdir ports/1 subsystems/disk/namespaces/1 subsystems/disk; modprobe -r nvmet_rdma nvmet brd"""
    attach = """modprobe nvme_rdma; nvme connect -t rdma -a $SERVER -s 4420 -n disk -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 -k 5 \
        --hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555 --hostid=11111111-2222-3333-4444-555555555555"""
    detach = "nvme disconnect -n disk"
    disk = "/dev/nvme*n1"


class Iser:
    package, program = "open-iscsi", "iSER (open-iscsi, LIO)"
    up = f"""modprobe -a target_core_mod iscsi_target_mod ib_isert; {CONFIGFS}; {LUN}
        T=target/iscsi/{IQN}/tpgt_1; mkdir -p target/iscsi; mkdir -p $T/lun/lun_0 $T/np/$SERVER:3260
        for a in generate_node_acls cache_dynamic_acls; do echo 1 >$T/attrib/$a; done
        for a in demo_mode_write_protect authentication; do echo 0 >$T/attrib/$a; done
        ln -s /sys/kernel/config/target/core/rd_mcp_0/disk $T/lun/lun_0/; echo 1 >$T/np/$SERVER:3260/iser"""
    start = f"echo 1 >/sys/kernel/config/target/iscsi/{IQN}/tpgt_1/enable"
    stop = f"echo 0 >/sys/kernel/config/target/iscsi/{IQN}/tpgt_1/enable"
    down = f"""cd /sys/kernel/config; T=target/iscsi/{IQN}/tpgt_1; echo 0 >$T/enable; rm -f $T/lun/lun_0/disk
        rmdir $T/np/* $T/lun/lun_0 $T target/iscsi/{IQN}; {NO_LUN}"""
    attach = f"""modprobe -a sd_mod ib_iser; pgrep -x iscsid >/dev/null || {{ mkdir -p /run/lock/iscsi; iscsid; sleep 1; }}
        iscsiadm -m node -o new -T {IQN} -p $SERVER:3260 -I iser >/dev/null
        iscsiadm -m node -T {IQN} -p $SERVER:3260 -o update -n node.session.timeo.replacement_timeout -v 600
        iscsiadm -m node -T {IQN} -p $SERVER:3260 -I iser -l"""
    detach = f"iscsiadm -m node -T {IQN} -p $SERVER:3260 -u && iscsiadm -m node -T {IQN} -p $SERVER:3260 -o delete"
    disk = "/dev/sd?"
    lun, iqn_tcp = 0, IQN
    over_tcp = f"mkdir /sys/kernel/config/target/iscsi/{IQN}/tpgt_1/np/$SERVER:3261"


class Tgt(Iser):
    """The target is a program over verbs. When it is killed, its file stays. It accepts initiators by address and name."""

    package, program = "tgt", "iSER (open-iscsi, tgt)"
    up = f"modprobe rdma_ucm; mkdir -p /srv/tgt; mount -t tmpfs -o size=300m disk /srv/tgt; truncate -s {MIB}M /srv/tgt/disk"
    # A target over RDMA, and another one over TCP with the same file.
    start = f"""tgtd --iscsi portal=0.0.0.0:3261; for i in $(seq 50); do tgtadm --mode system --op show >/dev/null 2>&1 && break; sleep 0.1; done
        make() {{ tgtadm --lld $1 --mode target --op new --tid $2 -T $3 && tgtadm --lld $1 --mode logicalunit --op new --tid $2 --lun 1 -b /srv/tgt/disk
            tgtadm --lld $1 --mode target --op bind --tid $2 -I ALL
            for name in $(sed -n s/^InitiatorName=//p /etc/iscsi/initiatorname.iscsi) iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test{{,-2}}; do
                tgtadm --lld $1 --mode target --op bind --tid $2 -Q $name || return; done; }}
        make iser 1 {IQN} && make iscsi 2 {IQN}-tcp"""
    stop = killed("tgtd")
    lun, iqn_tcp, over_tcp = 1, f"{IQN}-tcp", "true"
    down = f"{stop}; umount /srv/tgt"


class Srp:
    package, program = "linux", "SRP (ib_srp, ib_srpt)"
    # The target's name of the port is its first GID without the prefix. The target knows an initiator that comes by rdma_cm by the address
    # of the target itself (srpt_rdma_cm_req_recv in drivers/infiniband/ulp/srpt).
    GUID = "$(cut -d : -f 5-8 /sys/class/infiniband/$DEVICE/ports/1/gids/0)"
    up = f"""modprobe ib_srpt; {CONFIGFS}; {LUN}; mkdir -p target/srpt; echo 5555 >target/srpt/discovery_auth/rdma_cm_port
        T=$PWD/target/srpt/{GUID}/{GUID}; mkdir -p $T/lun/lun_0; ln -s $PWD/target/core/rd_mcp_0/disk $T/lun/lun_0/
        for i in $CLIENT $SERVER; do [ -d $T/acls/$i ] || {{ mkdir $T/acls/$i $T/acls/$i/lun_0; ln -s $T/lun/lun_0 $T/acls/$i/lun_0/; }}; done"""
    start = f"echo 1 >/sys/kernel/config/target/srpt/{GUID}/{GUID}/enable"
    stop = f"echo 0 >/sys/kernel/config/target/srpt/{GUID}/{GUID}/enable"
    down = f"""cd /sys/kernel/config; T=target/srpt/{GUID}/{GUID}; echo 0 >$T/enable; rm -f $T/acls/*/lun_0/lun_0; rmdir $T/acls/*/lun_0 $T/acls/*
        rm -f $T/lun/lun_0/disk; rmdir $T/lun/lun_0 $T target/srpt/{GUID}; {NO_LUN}; modprobe -r ib_srpt"""
    guid = "cat /sys/module/ib_srpt/parameters/srpt_service_guid"
    # ib_srp keeps a target a little longer than its port exists.
    attach = """modprobe -a sd_mod ib_srp; for i in 1 2 3 4 5; do
        echo "id_ext=$SRPT,initiator_ext=fe80000000000000,ioc_guid=$SRPT,src=$ADDRESS,dest=$SERVER:5555" \
            >/sys/class/infiniband_srp/srp-$DEVICE-1/add_target && exit 0; sleep 0.3; done; exit 1"""
    # The removal continues after the write.
    detach = """for f in /sys/class/srp_remote_ports/port-*/delete; do echo 1 >$f; done
        for i in $(seq 200); do compgen -G '/sys/class/srp_remote_ports/port-*' >/dev/null || exit 0; sleep 0.1; done; exit 1"""
    disk = "/dev/sd?"


class Nfs:
    package, program = "nfs-kernel-server", "NFS over RDMA"
    up = """modprobe -a nfsd rpcrdma; mkdir -p /srv/nfs; mount -t tmpfs -o size=300m export /srv/nfs
        mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
        exportfs -o rw,no_root_squash,fsid=0,insecure,no_subtree_check 10.0.0.0/7:/srv/nfs
        mkdir -p /run/rpc_pipefs /var/lib/nfs/nfsdcld; mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs pipes /run/rpc_pipefs
        rpc.mountd -N 3; nfsdcld -p /run/rpc_pipefs"""
    start = "rpc.nfsd --no-nfs-version 3 --grace-time 10 --lease-time 10 4 && echo rdma 20049 >/proc/fs/nfsd/portlist"
    stop = "rpc.nfsd 0"
    down = "rpc.nfsd 0; pkill -x rpc.mountd; pkill -x nfsdcld; exportfs -ua; sleep 1; umount /srv/nfs"
    attach = "modprobe -a nfs rpcrdma; mkdir -p /mnt/nfs; mount -t nfs4 -o proto=rdma,port=20049,vers=4.2,timeo=50 $SERVER:/ /mnt/nfs"
    detach = "umount -f /mnt/nfs"
    disk = "/mnt/nfs/file"
    mounted = True


class Diod:
    """diod must run neither as root nor as a daemon. Both change its credentials, and the kernel refuses calls on an rdma_cm file by a process
    with other credentials than those that opened it (ib_safe_file_access)."""

    package, program, suite = "diod", "9P over RDMA (diod)", "diod"
    up = "modprobe rdma_ucm; chmod 666 /dev/infiniband/*; mkdir -p /srv/9p; mount -t tmpfs -o size=300m,uid=nobody export /srv/9p"
    start = f"""ulimit -l unlimited
        setpriv --reuid nobody --regid nogroup --clear-groups {SUITES}/diod/diod -f -n -e /srv/9p -l 127.0.0.1:5641 >/dev/null 2>&1 &
        for i in $(seq 50); do rdma resource show cm_id | grep -q :5640 && exit 0; sleep 0.1; done; exit 1"""
    # After SIGTERM it would wait for one more event of rdma_cm, and end in the middle of the next mount.
    down = f"{killed('diod')}; umount /srv/9p"
    attach = """modprobe -a 9p 9pnet_rdma; mkdir -p /mnt/9p
        mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,aname=/srv/9p,uname=nobody,access=any $SERVER /mnt/9p"""
    detach = "umount /mnt/9p"
    disk = "/mnt/9p/file"
    mounted = True


class Store:
    """A target and its disk, which are both removed after the test."""

    def __init__(self, kind, place):
        if hasattr(kind, "suite"):
            suite(kind.suite)
        self.kind, self.place, self.path, self.mounted = kind, place, None, getattr(kind, "mounted", False)

    def there(self, line, limit=60):
        """Runs commands where the target is; CLIENT is the address of the initiator."""
        return perftest.end(perftest.serve("bash", "-c", f"SERVER={self.place.server} CLIENT={os.environ['ADDRESS']}\n{line}"), f"target: {line[:40]}", limit)

    def __enter__(self):
        try:
            self.there(self.kind.up)
            self.there(self.kind.start)
            if hasattr(self.kind, "guid"):
                os.environ["SRPT"] = self.there(self.kind.guid).strip()
        except Exception:
            self.quietly(self.there, self.kind.down)
            raise
        return self

    def __exit__(self, *_):
        self.quietly(self.place.run, self.kind.detach)
        self.quietly(self.there, self.kind.down)

    @staticmethod
    def quietly(run, line):
        try:
            run(line)
        except Failed:
            pass

    def attach(self):
        before = set(glob.glob(self.kind.disk))
        self.place.run(self.kind.attach, 60)
        if self.mounted:
            with open(self.kind.disk, "ab") as f:
                f.truncate(MIB << 20)
            self.path = self.kind.disk
            return self.path
        until("the disk", lambda: set(glob.glob(self.kind.disk)) - before)
        (self.path,) = set(glob.glob(self.kind.disk)) - before
        until("the disk opens", self.opens)
        return self.path

    def opens(self):
        """True if the new disk can be opened. The kernel makes its device file some moments earlier."""
        try:
            os.close(os.open(self.path, os.O_RDONLY))
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            return False
        return True

    def detach(self):
        self.place.run(self.kind.detach, 60)
        if not self.mounted:
            until("the disk is gone", lambda: not os.path.exists(self.path))


def transfer(place, kind):
    with Store(kind, place) as store:
        disk = store.attach()
        data, total = os.urandom(1 << 20), hashlib.sha256()
        with open("/tmp/data", "wb") as f:
            for i in range(MIB):
                piece = data[i:] + data[:i]
                total.update(piece)
                f.write(piece)
        began = time.monotonic()
        place.run(f"dd if=/tmp/data of={disk} bs=1M oflag=direct conv=fsync,notrunc 2>&1; rm /tmp/data", 600)
        taken = time.monotonic() - began
        store.detach()
        out = place.run(f"dd if={store.attach()} bs=1M count={MIB} iflag=direct | sha256sum", 600)
        if total.hexdigest() not in out:
            raise Failed(f"the data that were read differ from those written: {out[-200:]}")
        return Figure((MIB << 20) / taken, "bytes/s")


def reconnects(place, kind):
    with Store(kind, place) as store:
        for _ in range(20):
            place.run(f"dd if={store.attach()} of=/dev/null bs=1M count=8 iflag=direct")
            store.detach()


def restart(place, kind):
    with Store(kind, place) as store:
        load = Load(store.attach(), 4096)
        load.goes_on("before")
        for _ in range(2):
            store.there(kind.stop)
            time.sleep(3)
            store.there(kind.start)
            load.goes_on("the target is back", 120)
        load.end()
        load.check(store.path)


def cu_test(place, test, url):
    """Runs a test of libiscsi in its own process. Returns its result and its output."""
    out, _ = place.watched(f"iscsi-test-cu --dataloss --fail --test={test} {url} 2>&1", 60 * perftest.SLOW)
    # Columns: tests in total, run, passed, failed. A suite that could not start has run none.
    ran = re.search(r"^ +tests +\d+ +(\d+) +\d+ +(\d+)", out, re.M)
    asserts = re.search(r"^ +asserts +\d+ +\d+ +\d+ +(\d+)", out, re.M)
    good = ran and asserts and int(ran[1]) and (ran[2], asserts[1]) == ("0", "0")
    # If the target lacks a feature, the test skips itself and passes.
    return "fail" if not good else "nothere" if "[SKIPPED]" in out else "pass", out.split("Run Summary")[0].strip()[-300:]


def libiscsi(place, kind):
    """Runs SCSI tests. One that fails is repeated over TCP. If it fails there too while the target works, the target causes the failure."""
    with Store(kind, place) as store:
        store.there(kind.over_tcp)
        names = re.findall(r"^(SCSI\.\w+\.\w+)$", place.run("iscsi-test-cu --list"), re.M)
        over_rdma, over_tcp = f"iser://$SERVER:3260/{IQN}/{kind.lun}", f"iscsi://$SERVER:3261/{kind.iqn_tcp}/{kind.lun}"
        parts, good = [], None
        for name in names:
            result, why = cu_test(place, name, over_rdma)
            good = name if result == "pass" else good
            if result == "fail" and good and cu_test(place, name, over_tcp)[0] == "fail" and cu_test(place, good, over_tcp)[0] == "pass":
                result, why = "nothere", f"fails over TCP as well: {why}"
            parts.append(Part(name, result, "" if result == "pass" else why))
        return parts


def rows():
    kinds = {"nvme": Nvme, "iser": Iser, "tgt": Tgt, "srp": Srp, "nfs": Nfs, "9p": Diod}
    tests = {"transfer": transfer, "reconnects": reconnects, "restart": restart}
    found = [Row(f"storage/{k}_{t}", kind.program, kind.package, lambda p, r=run, kind=kind: r(p, kind))
             for k, kind in kinds.items() for t, run in tests.items() if (k, t) != ("9p", "restart")]
    found += [Row(f"storage/libiscsi_{k}", "libiscsi's tests", "libiscsi-bin", lambda p, k=k: libiscsi(p, kinds[k])) for k in ("iser", "tgt")]
    return found
