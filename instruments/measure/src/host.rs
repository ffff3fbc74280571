//! The facts of this host on which the cost of a clock read depends.

use crate::stats::tenths;
use crate::vdso::VdsoFacts;
use fastpath_isa::{Isa, cpu};
use serde::{Deserialize, Serialize};
use std::fs;
use std::mem::MaybeUninit;

/// The facts of a host that accompany a report about clocks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredHost {
    /// `uname -n`.
    pub name: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub machine: String,
    /// The CPU's name, where the kernel states it.
    pub cpu: Option<String>,
    /// CPUs that this process may run on.
    pub ncpu: usize,
    /// The kernel's clocksource in use.
    pub clocksource: Option<String>,
    /// The clocksources that the kernel could use.
    pub clocksources_available: Vec<String>,
    /// The instructions of a bare ordered counter read.
    pub counter: &'static str,
    /// Cost of such a read; `null` if the process may not read the counter.
    pub counter_ns: Option<f64>,
    /// The CPU's flags about the TSC's reliability (x86-64) that are set.
    pub tsc_flags: Vec<String>,
    /// The vDSO that AT_SYSINFO_EHDR names.
    pub vdso: Option<VdsoFacts>,
    /// Offsets of this process's time namespace, if it has any.
    pub timens_offsets: Vec<TimensOffset>,
    /// The seccomp mode: 0 none, 1 strict, 2 filter, as in `/proc/self/status`.
    pub seccomp: Option<u32>,
    /// The hypervisor's name, if it states one.
    pub hypervisor: Option<String>,
}

/// Offset of one clock of a time namespace from the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimensOffset {
    /// `monotonic` or `boottime`.
    pub clock: String,
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds in addition to the seconds.
    pub nsec: i64,
}

/// The flags in `/proc/cpuinfo` that concern clocks.
const TSC_FLAGS: &[&str] = &[
    "tsc",
    "rdtscp",
    "constant_tsc",
    "nonstop_tsc",
    "tsc_known_freq",
    "tsc_reliable",
    "tsc_adjust",
];

impl MeasuredHost {
    pub fn look(counter_ns: Option<f64>, vdso: Option<VdsoFacts>) -> MeasuredHost {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let uname = uname();
        MeasuredHost {
            name: field(&uname, |name| &name.nodename),
            kernel: field(&uname, |name| &name.release),
            machine: field(&uname, |name| &name.machine),
            cpu: cpuinfo_value(&cpuinfo, "model name").map(str::to_owned),
            ncpu: fastpath_evidence::cpus::allowed().len(),
            clocksource: clocksource("current").pop(),
            clocksources_available: clocksource("available"),
            counter: crate::counter::counter_name(),
            counter_ns: counter_ns.map(tenths),
            tsc_flags: tsc_flags(&cpuinfo),
            vdso,
            timens_offsets: timens_offsets(),
            seccomp: seccomp_mode_of_this_process(),
            hypervisor: hypervisor(),
        }
    }
}

fn uname() -> Option<libc::utsname> {
    let mut name = MaybeUninit::uninit();
    // SAFETY: uname fills the whole struct when it answers 0.
    unsafe { (libc::uname(name.as_mut_ptr()) == 0).then(|| name.assume_init()) }
}

fn field(name: &Option<libc::utsname>, of: impl Fn(&libc::utsname) -> &[libc::c_char]) -> String {
    let Some(name) = name else { return String::new() };
    let bytes: Vec<u8> = of(name)
        .iter()
        .map(|c| *c as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn cpuinfo_value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}

fn tsc_flags(cpuinfo: &str) -> Vec<String> {
    let flags = cpuinfo_value(cpuinfo, "flags").unwrap_or_default();
    flags
        .split(' ')
        .filter(|flag| TSC_FLAGS.contains(flag))
        .map(str::to_owned)
        .collect()
}

fn clocksource(which: &str) -> Vec<String> {
    let path = format!("/sys/devices/system/clocksource/clocksource0/{which}_clocksource");
    fs::read_to_string(path)
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Returns the seccomp mode (0 none, 1 strict, 2 filter); `None` if /proc does not state it.
pub(crate) fn seccomp_mode_of_this_process() -> Option<u32> {
    fastpath_os::Status::read("self").ok()?.number("Seccomp")
}

fn timens_offsets() -> Vec<TimensOffset> {
    // The file shows the offsets of the namespace that children will get. After unshare(CLONE_NEWTIME) this process
    // itself is not in it.
    let link = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    if link("time") != link("time_for_children") {
        return Vec::new();
    }
    parse_timens_offsets(&fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default())
}

pub fn parse_timens_offsets(offsets: &str) -> Vec<TimensOffset> {
    let offset = |(clock, sec, nsec): (&str, _, _)| TimensOffset {
        clock: clock.to_owned(),
        sec,
        nsec,
    };
    fastpath_os::parse_time_offsets(offsets)
        .filter(|(_, sec, nsec)| (*sec, *nsec) != (0, 0))
        .map(offset)
        .collect()
}

fn hypervisor() -> Option<String> {
    if Isa::HOST.is_x86() {
        return hypervisor_name(&cpu::hypervisor()?);
    }
    fs::read_to_string("/sys/hypervisor/type")
        .ok()
        .map(|name| name.trim().to_owned())
}

fn hypervisor_name(signature: &[u8]) -> Option<String> {
    let signature = String::from_utf8_lossy(signature);
    let signature = signature.trim_matches(|c: char| c == '\0' || c == ' ');
    let name = match signature {
        "" => return None,
        "KVMKVMKVM" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU (TCG)",
        "bhyve bhyve" => "bhyve",
        "VBoxVBoxVBox" => "VirtualBox",
        "ACRNACRNACRN" => "ACRN",
        other => other,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_this_test_has_a_kernel_and_a_cpu() {
        let host = MeasuredHost::look(Some(12.345), None);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(host.kernel, release.trim());
        assert_eq!(host.machine, std::env::consts::ARCH);
        assert_eq!(host.counter_ns, Some(12.3));
        assert!(host.ncpu >= 1);
        assert!(host.seccomp.is_some());
    }

    #[test]
    fn only_flags_about_the_tsc_are_reported() {
        let cpuinfo =
            "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu tsc rdtscp constant_tsc sse\n\nflags\t: vme\n";
        assert_eq!(tsc_flags(cpuinfo), ["tsc", "rdtscp", "constant_tsc"]);
        assert_eq!(cpuinfo_value(cpuinfo, "model name"), Some("AMD EPYC"));
        assert!(tsc_flags("").is_empty());
    }

    #[test]
    fn a_time_namespace_is_reported_only_when_it_moves_a_clock() {
        assert!(parse_timens_offsets("monotonic           0         0\nboottime            0         0\n").is_empty());
        let moved = parse_timens_offsets("monotonic       86400         0\nboottime           -3       500\n");
        let offset = |clock: &str, sec, nsec| TimensOffset {
            clock: clock.to_owned(),
            sec,
            nsec,
        };
        assert_eq!(moved, [offset("monotonic", 86400, 0), offset("boottime", -3, 500)]);
    }

    #[test]
    fn hypervisors_are_called_by_their_names() {
        assert_eq!(hypervisor_name(b"KVMKVMKVM\0\0\0").as_deref(), Some("KVM"));
        assert_eq!(hypervisor_name(b"Microsoft Hv").as_deref(), Some("Hyper-V"));
        assert_eq!(hypervisor_name(b"SomethingNew").as_deref(), Some("SomethingNew"));
        assert_eq!(hypervisor_name(&[0; 12]), None);
    }
}
