//! The host, as its files show it.

use super::arch;
use super::facts::{Clocksource, KernelVdso, Mitigation};
use super::root::Root;
use fastpath_measure::vdso::Vdso;
use std::collections::BTreeSet;

/// Parameters of the kernel's command line that affect clocks, and what makes them fast (admin-guide/kernel-parameters.txt).
const PARAMETERS: &[&str] = &[
    "tsc",
    "notsc",
    "tsc_early_khz",
    "clocksource",
    "clock",
    "nohpet",
    "hpet",
    "acpi",
    "acpi_pm",
    "vdso",
    "vdso32",
    "vsyscall",
    "processor.max_cstate",
    "intel_idle.max_cstate",
    "idle",
    "no-kvmclock",
    "no-kvmclock-vsyscall",
    "mitigations",
    "nopti",
    "pti",
    "clocksource.arm_arch_timer.evtstrm",
    "clocksource-wdtest.holdoff",
    "clocksource.max_cswd_read_retries",
    "clocksource.verify_n_cpus",
    "proc_mem.force_override",
];

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0";
const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";

/// Returns the parameters that affect clocks; `None` if the command line cannot be read.
pub(super) fn parameters(root: &Root) -> Option<Vec<String>> {
    let line = root.expect(
        "the kernel's command line",
        "/proc/cmdline",
        "look at it where /proc is whole: outside this container",
    )?;
    let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let wanted = |word: &&str| PARAMETERS.contains(&name(word).as_str());
    // The words after `--` are for init.
    let words = line.split_whitespace().take_while(|word| *word != "--");
    Some(words.filter(wanted).map(str::to_owned).collect())
}

pub(super) fn clocksource(root: &Root) -> Clocksource {
    let read = |which| {
        let file = format!("{CLOCKSOURCE}/{which}_clocksource");
        root.expect(
            "the kernel's clocksource",
            &file,
            "look at it where /sys is mounted: outside this container",
        )
    };
    let current = read("current")
        .map(|text| text.trim().to_owned())
        .filter(|name| !name.is_empty());
    let available = match &current {
        // Missing files are reported once, not once per file.
        None => String::new(),
        Some(_) => read("available").unwrap_or_default(),
    };
    Clocksource {
        current,
        available: available.split_whitespace().map(str::to_owned).collect(),
    }
}

/// Returns the CPU's flags about its counter: those that are set, and those that the kernel looks for and that are
/// missing.
pub(super) fn flags(cpuinfo: &str) -> (Vec<String>, Vec<&'static str>) {
    // `flags` on x86, `Features` on Arm.
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let all: Vec<&str> = line
        .and_then(|line| line.split(':').nth(1))
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let known = arch::FLAGS.iter().chain(arch::MORE_FLAGS);
    let set = known
        .filter(|flag| all.contains(flag))
        .map(|flag| (*flag).to_owned())
        .collect();
    let missing = arch::FLAGS.iter().filter(|flag| !all.contains(flag)).copied().collect();
    (set, missing)
}

/// Returns the CPU's manufacturer.
pub(super) fn vendor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("vendor_id"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the number of sockets; 0 if it cannot be read.
pub(super) fn packages(root: &Root) -> usize {
    const CPUS: &str = "/sys/devices/system/cpu";
    let package = |cpu: String| root.line(&format!("{CPUS}/{cpu}/topology/physical_package_id"));
    let packages: BTreeSet<String> = root.names(CPUS).into_iter().filter_map(package).collect();
    packages.len()
}

/// Returns the hypervisor as files name it: by Xen's own file, or else by the machine's manufacturer.
pub(super) fn hypervisor(root: &Root, product: Option<&str>) -> Option<String> {
    let kind = root.line("/sys/hypervisor/type").map(|kind| match kind.as_str() {
        "xen" => "Xen".to_owned(),
        _ => kind,
    });
    let by_maker = || {
        let product = product?;
        let known = [
            ("QEMU", "QEMU/KVM"),
            ("KVM", "KVM"),
            ("VMware", "VMware"),
            ("Microsoft Corporation Virtual", "Hyper-V"),
            ("Xen", "Xen"),
            ("innotek", "VirtualBox"),
            ("Amazon EC2", "KVM"),
            ("Google Compute Engine", "KVM"),
        ];
        known
            .iter()
            .find(|(maker, _)| product.contains(maker))
            .map(|(_, name)| (*name).to_owned())
    };
    kind.or_else(by_maker)
}

/// Name of gVisor.
pub(super) const GVISOR: &str = "gVisor";

/// Returns the program or kernel that acts as a Linux kernel on top of another one, if there is one. Its clocks are those
/// of the kernel below it, and CPUID describes that kernel's machine.
///
/// | kernel | recognised by |
/// |---|---|
/// | User Mode Linux | /proc/cpuinfo, `vendor_id` (arch/um/kernel/um_arch.c: show_cpuinfo) |
/// | gVisor | the version that uname(2) and /proc/version state (pkg/sentry/syscalls/linux) |
/// | WSL 1 | a release that ends with `-Microsoft`; WSL 2, a real kernel, has `-microsoft-standard-WSL2` |
/// | FreeBSD's Linuxulator | /proc/version names `des@freebsd.org` (sys/compat/linprocfs/linprocfs.c: linprocfs_doversion) |
pub(super) fn stand_in(root: &Root, cpuinfo: Option<&str>, release: &str) -> Option<&'static str> {
    // gVisor's pkg/sentry/syscalls/linux: the answers of uname(2) in versions with and without its name.
    const GVISOR_VERSION: &str = "#1 SMP Sun Jan 10 15:06:54 PST 2016";
    let is_uml = cpuinfo.is_some_and(|cpuinfo| cpuinfo.contains("User Mode Linux"));
    let version = root.text("/proc/version").unwrap_or_default();
    let is_gvisor = release.contains("gvisor") || version.contains(GVISOR_VERSION) || version.contains("gvisor");
    match (is_uml, is_gvisor) {
        (true, _) => Some("User Mode Linux"),
        (_, true) => Some(GVISOR),
        _ if release.ends_with("-Microsoft") => Some("WSL 1"),
        _ if version.contains("des@freebsd.org") => Some("FreeBSD's Linuxulator"),
        _ => None,
    }
}

/// Returns the machine's name as the firmware states it.
pub(super) fn product(root: &Root) -> Option<String> {
    let read = |name| root.line(&format!("/sys/class/dmi/id/{name}"));
    let words: Vec<String> = [read("sys_vendor"), read("product_name")]
        .into_iter()
        .flatten()
        .collect();
    // Arm boards have a device tree instead of DMI.
    let model = || root.line("/proc/device-tree/model");
    (!words.is_empty()).then(|| words.join(" ")).or_else(model)
}

pub(super) fn mitigations(root: &Root) -> Vec<Mitigation> {
    let names = root.names(VULNERABILITIES);
    if names.is_empty() {
        let why = root
            .text(VULNERABILITIES)
            .err()
            .filter(|e| e.kind() != std::io::ErrorKind::IsADirectory);
        let why = why.map_or_else(|| "no files in it".to_owned(), |error| error.to_string());
        root.miss(
            "what the kernel does about CPU vulnerabilities",
            VULNERABILITIES,
            &why,
            "look at it where /sys is mounted: outside this container",
        );
    }
    let read = |name: String| {
        let status = root.line(&format!("{VULNERABILITIES}/{name}"))?;
        let taxes_system_calls = taxes_system_calls(&name, &status);
        Some(Mitigation {
            name,
            status,
            taxes_system_calls,
        })
    };
    names.into_iter().filter_map(read).collect()
}

/// Returns whether a mitigation adds work to each kernel entry or exit (admin-guide/hw-vuln): switching page tables,
/// clearing buffers, writing IBRS, untraining the return predictor.
fn taxes_system_calls(name: &str, status: &str) -> bool {
    let Some(mitigation) = status.strip_prefix("Mitigation: ") else {
        return false;
    };
    match name {
        "meltdown" => mitigation.contains("PTI"),
        "mds" | "tsx_async_abort" | "mmio_stale_data" | "reg_file_data_sampling" | "tsa" => {
            mitigation.contains("Clear CPU buffers")
        }
        "spectre_v2" => mitigation.split([';', ',']).any(|part| part.trim() == "IBRS"),
        "retbleed" => {
            mitigation.contains("IBRS") && !mitigation.contains("Enhanced") || mitigation.contains("untrained")
        }
        "spec_rstack_overflow" => mitigation.contains("Safe RET") || mitigation.contains("IBPB"),
        _ => false,
    }
}

/// Describes the kernel's vDSO in this process, and the functions that a newer one would have.
pub(super) fn kernel_vdso(vdso: Option<&Vdso>) -> KernelVdso {
    let Some(vdso) = vdso else {
        return KernelVdso::default();
    };
    let has = |(name, _): &&(&'static str, &'static str)| vdso.exports(name);
    KernelVdso {
        is_mapped: true,
        functions: arch::FUNCTIONS
            .iter()
            .filter(has)
            .map(|(name, _)| (*name).into())
            .collect(),
        lacks: arch::FUNCTIONS
            .iter()
            .filter(|f| !has(f))
            .map(|(name, since)| ((*name).into(), (*since).into()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Tree;
    use super::*;

    #[test]
    fn a_host_on_hpet_is_read_from_its_files() {
        let tree = Tree::new(&[
            (
                "proc/cmdline",
                "BOOT_IMAGE=/vmlinuz root=/dev/sda1 tsc=unstable clocksource=hpet quiet -- clocksource=init\n",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/available_clocksource",
                "hpet acpi_pm \n",
            ),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n"),
        ]);
        let root = tree.root();
        assert_eq!(parameters(&root).unwrap(), ["tsc=unstable", "clocksource=hpet"]);
        let clocksource = clocksource(&root);
        assert_eq!(clocksource.current.as_deref(), Some("hpet"));
        assert_eq!(clocksource.available, ["hpet", "acpi_pm"]);
        let product = product(&root);
        assert_eq!(product.as_deref(), Some("QEMU Standard PC (Q35 + ICH9, 2009)"));
        assert_eq!(hypervisor(&root, product.as_deref()).as_deref(), Some("QEMU/KVM"));
        assert!(root.into_unseen().is_empty());
    }

    #[test]
    fn a_container_without_sys_is_missed_once_each() {
        let tree = Tree::new(&[("proc/cmdline", "quiet\n")]);
        let root = tree.root();
        assert_eq!(clocksource(&root).current, None);
        assert!(mitigations(&root).is_empty());
        assert_eq!(parameters(&root).unwrap(), [""; 0]);
        let unseen = root.into_unseen();
        assert_eq!(unseen.len(), 2, "{unseen:?}");
        assert!(unseen[0].source.ends_with("current_clocksource"));
    }

    #[test]
    fn kernels_on_top_of_other_kernels_are_recognised_by_what_they_state() {
        const GVISORS: &str = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n";
        const FREEBSDS: &str =
            "Linux version 5.15.0 (des@freebsd.org) (gcc version 4.6.3) #4 Sun Dec 18 04:30:00 CET 1977\n";
        const DEBIANS: &str = "Linux version 6.1.0-42-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC\n";
        let uml = Some("processor\t: 0\nvendor_id\t: User Mode Linux\nmodel name\t: UML\n");
        let cpu = Some("processor\t: 0\nvendor_id\t: GenuineIntel\n");
        let cases = [
            (DEBIANS, uml, "6.1.176", Some("User Mode Linux")),
            (GVISORS, cpu, "4.4.0", Some(GVISOR)),
            (DEBIANS, cpu, "4.19.0-gvisor", Some(GVISOR)),
            (DEBIANS, cpu, "4.4.0-19041-Microsoft", Some("WSL 1")),
            (DEBIANS, cpu, "5.15.167.4-microsoft-standard-WSL2", None),
            (FREEBSDS, cpu, "5.15.0", Some("FreeBSD's Linuxulator")),
            (DEBIANS, cpu, "6.1.0-42-amd64", None),
            (DEBIANS, None, "6.1.0-42-amd64", None),
        ];
        for (version, cpuinfo, release, expected) in cases {
            let tree = Tree::new(&[("proc/version", version)]);
            assert_eq!(
                stand_in(&tree.root(), cpuinfo, release),
                expected,
                "{release}: {version}"
            );
        }
    }

    #[test]
    fn xen_says_its_own_name() {
        let tree = Tree::new(&[("sys/hypervisor/type", "xen\n")]);
        assert_eq!(hypervisor(&tree.root(), None).as_deref(), Some("Xen"));
        assert_eq!(hypervisor(&Tree::new(&[]).root(), Some("Dell PowerEdge")), None);
    }

    #[test]
    fn what_is_paid_at_every_system_call_is_told_from_what_is_not() {
        let files = [
            ("meltdown", "Mitigation: PTI", true),
            ("meltdown", "Not affected", false),
            ("mds", "Mitigation: Clear CPU buffers; SMT vulnerable", true),
            ("mds", "Vulnerable: Clear CPU buffers attempted, no microcode", false),
            ("spectre_v2", "Mitigation: IBRS; IBPB: conditional", true),
            (
                "spectre_v2",
                "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional",
                false,
            ),
            ("spectre_v2", "Mitigation: Retpolines; STIBP: disabled", false),
            ("retbleed", "Mitigation: untrained return thunk; SMT enabled", true),
            ("retbleed", "Mitigation: Enhanced IBRS", false),
            ("retbleed", "Vulnerable", false),
            ("spec_rstack_overflow", "Mitigation: Safe RET", true),
            ("spectre_v1", "Mitigation: usercopy/swapgs barriers", false),
        ];
        for (name, status, taxes) in files {
            assert_eq!(taxes_system_calls(name, status), taxes, "{name}: {status}");
        }
    }
}
