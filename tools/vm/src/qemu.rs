// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command line of QEMU.

use crate::nic::{mac_address, rxe_mac_address, GuestPlaces};
use crate::options::{Accelerator, Run};
use crate::root::Places;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

/// The program, in the installation's Debian root.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// What QEMU needs to know of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What executes the guest's instructions.
    pub accelerator: Accelerator,
    /// Arguments for the guest's kernel about the clock.
    pub clock_args: String,
}

impl Host {
    /// Inspects this machine.
    ///
    /// # Errors
    ///
    /// KVM is demanded, and this machine has none.
    pub fn inspect(demanded: Option<Accelerator>) -> Result<Self, String> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        let accelerator = match (demanded, kvm) {
            (Some(Accelerator::Kvm), Err(e)) => {
                return Err(format!(
                    "--accel kvm: this machine offers no KVM (/dev/kvm: {e}): use --accel tcg"
                ))
            }
            (Some(accelerator), _) => accelerator,
            // /dev/kvm may exist where the processor cannot run a guest's kernel.
            (None, Ok(_)) if has_virtualisation(&cpuinfo) => Accelerator::Kvm,
            (None, _) => Accelerator::Tcg,
        };
        let clock_args = match accelerator {
            Accelerator::Tcg => clock_args(&cpuinfo),
            Accelerator::Kvm => String::new(),
        };
        Ok(Self {
            accelerator,
            clock_args,
        })
    }
}

/// True if the processor can run guests by hardware virtualisation, by `/proc/cpuinfo`.
pub fn has_virtualisation(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| {
            line.split_ascii_whitespace()
                .any(|flag| ["vmx", "svm"].contains(&flag))
        })
}

/// Returns the kernel's arguments about the clock under TCG. The guest reads the host's TSC, so the
/// TSC is reliable, and its frequency is half of the BogoMIPS. On a busy host, the guest's own
/// measurement may be wrong by any factor, and the guest would then use the slow HPET.
fn clock_args(cpuinfo: &str) -> String {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let bogomips = lines.find(|(name, _)| name.trim() == "bogomips");
    match bogomips.and_then(|(_, value)| value.trim().parse::<f64>().ok()) {
        Some(bogomips) => format!(
            " tsc=reliable tsc_early_khz={:.0}",
            (bogomips * 500.0).trunc()
        ),
        None => String::new(),
    }
}

/// Returns the format of a disk image for QEMU: `qcow2` (in the packages) or `raw`. No guest can choose
/// the format by what it writes, because runs do not change the image.
fn disk_format(disk: &Path) -> &'static str {
    const MAGIC_OF_QCOW2: [u8; 4] = *b"QFI\xfb";
    let mut head = [0; 4];
    let read = File::open(disk).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Ok(()) if head == MAGIC_OF_QCOW2 => "qcow2",
        _ => "raw",
    }
}

/// Returns the arguments of QEMU for a guest. `has_input` says that QEMU's standard input is that of
/// the guest's command.
pub fn arguments(
    run: &Run,
    number: usize,
    host: &Host,
    places: &Places,
    guest: &GuestPlaces,
    has_input: bool,
) -> Vec<OsString> {
    let mut line = Line::default();
    add_machine(&mut line, run, host);
    let log = |name: &str| guest.logs.join(name).display().to_string();
    let socket = |name: &str| guest.sockets.join(name).display().to_string();
    let path = |path: &Path| path.display().to_string();
    line.option("-kernel", path(&places.kernel));
    line.option("-initrd", log("initrd.cpio"));
    let more = run
        .kernel_args
        .iter()
        .fold(String::new(), |line, arg| line + " " + arg);
    line.option(
        "-append",
        format!(
            "console=ttyS0 loglevel=7 panic=-1 oops=panic sysctl.kernel.hung_task_timeout_secs=20 sysctl.kernel.hung_task_warnings=-1{}{more}",
            host.clock_args
        ),
    );
    line.option(
        "-drive",
        format!(
            "file={},format={},if=virtio,snapshot=on",
            path(&places.disk),
            disk_format(&places.disk)
        ),
    );
    line.option(
        "-chardev",
        format!("file,id=log,append=on,path={}", log("kernel.log")),
    );
    line.option("-serial", "chardev:log");
    line.option("-device", "virtio-serial-pci");
    line.port("status", format!("file,id=status,path={}", log("status")));
    line.flag("-no-reboot");
    if run.is_shell_of(number) {
        line.option("-chardev", "stdio,id=tty,mux=on,signal=off");
        line.option("-device", "virtconsole,chardev=tty");
    } else {
        if has_input {
            line.port("stdin", "stdio,id=stdin,signal=off");
        }
        for name in ["stdout", "stderr"] {
            line.port(name, format!("file,id={name},append=on,path={}", log(name)));
        }
    }
    if run.stays {
        let socket = guest.agent_socket().display().to_string();
        line.port("agent", format!("socket,id=agent,path={socket},server=off"));
    }
    line.option(
        "-netdev",
        format!(
            "stream,id=n0,server=off,addr.type=unix,addr.path={}",
            socket("net")
        ),
    );
    // Behind a root port, the function has a PCI Express link, whose speed programs read.
    line.option("-device", "pcie-root-port,id=rdma");
    line.option(
        "-device",
        format!(
            r#"{{"driver":"vfio-user-pci","bus":"rdma","socket":{{"type":"unix","path":"{}"}}}}"#,
            socket("nic")
        ),
    );
    line.port(
        "control",
        format!("socket,id=control,path={},server=off", socket("control")),
    );
    line.option(
        "-device",
        format!(
            "virtio-net-pci,netdev=n0,mac={},speed=100000,duplex=full,romfile=",
            mac_address(number)
        ),
    );
    if run.has_rxe {
        for network in rxe_networks(run, number, &places.sockets) {
            line.option("-netdev", network);
        }
        let mac = rxe_mac_address(number);
        line.option(
            "-device",
            format!("virtio-net-pci,netdev=n1,mac={mac},romfile="),
        );
    }
    if run.guests > 1 {
        let together = path(&places.logs.join("together"));
        line.option(
            "-virtfs",
            format!("local,path={together},mount_tag=together,security_model=none,multidevs=remap"),
        );
    }
    for (n, share) in places.shares.iter().enumerate() {
        // With `none`, a user who is not root may share a directory too.
        line.option(
            "-virtfs",
            format!(
                "local,path={},mount_tag=share{n},security_model=none,multidevs=remap",
                path(share)
            ),
        );
    }
    // QEMU knows that ivshmem with `master=off` cannot migrate. With this device QEMU refuses
    // `migrate` and `savevm`, which would lose what the NIC wrote (Documentation/snapshots.md). It
    // comes last, so that it does not change the addresses of the others.
    const GUARD: &str = "verbena-forbids-migration-and-snapshots";
    line.option(
        "-object",
        format!("memory-backend-ram,id={GUARD},size=4096,share=on"),
    );
    line.option(
        "-device",
        format!(r#"{{"driver":"ivshmem-plain","memdev":"{GUARD}","master":"off"}}"#),
    );
    line.option(
        "-qmp",
        format!("unix:{},server=on,wait=off", socket("watch")),
    );
    line.0
}

/// Returns the network of rxe0: between two guests a stream; for a single guest a hub, whose other
/// port leads nowhere.
fn rxe_networks(run: &Run, number: usize, sockets: &Path) -> Vec<String> {
    let socket = sockets.join("rxe").display().to_string();
    if run.guests == 1 {
        return ["n1", "n1-end"]
            .map(|id| format!("hubport,id={id},hubid=1"))
            .to_vec();
    }
    let role = match number {
        1 => "server=on",
        _ => "server=off,reconnect-ms=500",
    };
    let stream = format!("stream,id=n1,{role},addr.type=unix,addr.path={socket}");
    vec![stream]
}

fn add_machine(line: &mut Line, run: &Run, host: &Host) {
    for flag in ["-nodefaults", "-no-user-config"] {
        line.flag(flag);
    }
    line.option("-display", "none");
    line.option("-machine", "q35,memory-backend=m");
    let memory = run.memory_mb;
    line.option(
        "-object",
        format!("memory-backend-memfd,id=m,size={memory}M,share=on"),
    );
    line.option("-m", memory.to_string());
    let accelerator = match host.accelerator {
        Accelerator::Tcg => "tcg,thread=multi",
        Accelerator::Kvm => "kvm",
    };
    line.option("-accel", accelerator);
    line.option("-cpu", "max");
    // With one possible CPU, TCG emits no atomic and no fencing instructions, which other processes
    // need.
    let possible = run.cpus.max(2);
    line.option("-smp", format!("{},maxcpus={possible}", run.cpus));
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.flag(name);
        self.0.push(value.into());
    }

    /// Adds a port of the guest, `verbena.NAME`, that ends at a character device of the same name.
    fn port(&mut self, name: &str, device: impl Into<OsString>) {
        self.option("-chardev", device);
        self.option(
            "-device",
            format!("virtserialport,chardev={name},name=verbena.{name}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::scratch::Scratch;
    use std::path::PathBuf;

    fn line(options: RunOptions, number: usize, has_input: bool) -> String {
        let run = options.check().unwrap();
        let places = Places::new(PathBuf::from("/host"), run.shares.len());
        let host = Host {
            accelerator: Accelerator::Tcg,
            clock_args: String::from(" tsc=reliable"),
        };
        let guest = GuestPlaces::new(&run, number, &places.logs, &places.sockets);
        let arguments = arguments(&run, number, &host, &places, &guest, has_input);
        let words: Vec<_> = arguments.iter().map(|a| a.to_str().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn the_format_of_a_disk_is_known_by_its_first_bytes() {
        let scratch = Scratch::new("disk");
        let disk = scratch.0.join("disk");
        assert_eq!(disk_format(&disk), "raw");
        for (head, format) in [("QFI", "raw"), ("QFI.", "raw"), ("\0\0\0\0\0", "raw")] {
            std::fs::write(&disk, head).unwrap();
            assert_eq!(disk_format(&disk), format, "{head:?}");
        }
        std::fs::write(&disk, b"QFI\xfb\0\0\0\x03").unwrap();
        assert_eq!(disk_format(&disk), "qcow2");
    }

    #[test]
    fn a_guest_has_its_kernel_disk_ports_and_nic() {
        let line = line(RunOptions::default(), 1, false);
        for part in [
            "-accel tcg,thread=multi -cpu max -smp 2,maxcpus=2",
            "-object memory-backend-memfd,id=m,size=2048M,share=on -m 2048",
            "-kernel /verbena/kernel -initrd /verbena/logs/initrd.cpio -append console=ttyS0",
            "hung_task_warnings=-1 tsc=reliable -drive file=/verbena/disk,format=raw,if=virtio,snapshot=on",
            "-chardev file,id=status,path=/verbena/logs/status -device virtserialport,chardev=status,name=verbena.status",
            "-chardev file,id=stderr,append=on,path=/verbena/logs/stderr -device virtserialport,chardev=stderr,name=verbena.stderr",
            r#"{"driver":"vfio-user-pci","bus":"rdma","socket":{"type":"unix","path":"/verbena/sockets/nic"}}"#,
            "virtio-net-pci,netdev=n0,mac=52:54:00:12:34:56",
            "-qmp unix:/verbena/sockets/watch,server=on,wait=off",
        ] {
            assert!(line.contains(part), "{part}\n{line}");
        }
        for part in ["stdio", "virtfs", "together"] {
            assert!(!line.contains(part), "{part}\n{line}");
        }
    }

    #[test]
    fn each_guest_of_several_has_its_own_directories() {
        let options = RunOptions {
            guests: 2,
            cpus: 1,
            shares: vec![PathBuf::from("/home/a")],
            kernel_args: vec![String::from("nosmp"), String::from("debug")],
            ..RunOptions::default()
        };
        let line = line(options, 2, true);
        for part in [
            "-smp 1,maxcpus=2",
            "tsc=reliable nosmp debug -drive",
            "-initrd /verbena/logs/vm2/initrd.cpio",
            "addr.path=/verbena/sockets/2/net",
            "mac=52:54:00:12:35:56",
            "local,path=/verbena/logs/together,mount_tag=together,security_model=none",
            "local,path=/verbena/share0,mount_tag=share0,security_model=none",
            "-chardev stdio,id=stdin,signal=off -device virtserialport,chardev=stdin,name=verbena.stdin",
        ] {
            assert!(line.contains(part), "{part}\n{line}");
        }
    }

    #[test]
    fn only_a_guest_that_stays_has_an_agent() {
        let options = RunOptions {
            stays: true,
            ..RunOptions::default()
        };
        let port = "-chardev socket,id=agent,path=/verbena/sockets/agent,server=off -device virtserialport,chardev=agent,name=verbena.agent";
        assert!(line(options, 1, false).contains(port));
        assert!(!line(RunOptions::default(), 1, false).contains("verbena.agent"));
    }

    #[test]
    fn the_cards_of_rxe_are_joined() {
        let options = |guests| RunOptions {
            guests,
            has_rxe: true,
            ..RunOptions::default()
        };
        let alone = line(options(1), 1, false);
        let cards = "-netdev hubport,id=n1,hubid=1 -netdev hubport,id=n1-end,hubid=1 -device virtio-net-pci,netdev=n1,mac=52:54:00:12:34:57";
        assert!(alone.contains(cards), "{alone}");
        for (number, role) in [(1, "on"), (2, "off,reconnect-ms=500")] {
            let stream = "addr.type=unix,addr.path=/verbena/sockets/rxe";
            let network = format!("stream,id=n1,server={role},{stream}");
            let line = line(options(2), number, false);
            assert!(line.contains(&network), "{line}");
        }
        assert!(!line(RunOptions::default(), 1, false).contains("n1"));
    }

    #[test]
    fn only_vm1_can_be_a_shell() {
        let options = RunOptions {
            guests: 2,
            is_shell: true,
            ..RunOptions::default()
        };
        let first = line(options.clone(), 1, false);
        assert!(
            first.contains("virtconsole") && !first.contains("verbena.stdout"),
            "{first}"
        );
        assert!(line(options, 2, false).contains("verbena.stdout"));
    }

    #[test]
    fn the_clock_of_tcg_is_half_of_the_bogomips() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu vmx\nbogomips\t: 4400.02\n";
        assert_eq!(clock_args(cpuinfo), " tsc=reliable tsc_early_khz=2200010");
        assert_eq!(clock_args("processor : 0\n"), "");
        assert!(has_virtualisation(cpuinfo));
        assert!(!has_virtualisation("flags : fpu vmx_x\nname : vmx\n"));
    }
}
