//! Puts a program that has just been exec'd, and has not run an instruction, on the synthetic vDSO.

use std::os::fd::OwnedFd;

use fastpath_image::{Instance, vdso::Vdso};

use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::program::{self, Code};
use crate::region;
use crate::remote::RemoteCalls;
use crate::sites;
use crate::stack::{AT_SYSINFO_EHDR, InitialStack};
use crate::surgery::{self, Plan};
use crate::target::Status;
use crate::tracee::Tracee;

/// What every program of one `run` gets.
pub struct Kit {
    /// The page, to be mapped read-only.
    pub page: OwnedFd,
    /// Opens the mailbox anew: the file is counted by the kernel as long as a program maps it.
    pub mailbox: Box<dyn Fn() -> Result<OwnedFd> + Send + Sync>,
    /// Start programs as on a host whose kernel gives them no vDSO.
    pub without_vdso: bool,
    /// Give them ours. If not, they only get the hook, so that their descendants are treated alike.
    pub serve: bool,
    /// Seccomp filters that this process inherited, and under which the calls made here were tried.
    pub filters: u32,
    /// Scans of the libraries seen so far.
    pub scans: sites::Cache,
}

/// x86-64 user code segment of 64-bit programs (arch/x86/include/asm/segment.h: __USER_CS).
const USER_CS_64: u64 = 0x33;

/// Installs the region and leads the program's start through it. On an error the program is as it was.
pub fn install(tracee: &mut Tracee, kit: &Kit) -> Result<()> {
    let registers = tracee.registers()?;
    if registers.cs != USER_CS_64 {
        return Err(Error::Unsupported(
            "it is a 32-bit program, which is not served yet".into(),
        ));
    }
    let pid = tracee.pid();
    if Status::of(&pid.to_string())?.filters > kit.filters {
        return Err(Error::Unsupported(
            "it has a seccomp filter that this process cannot try out".into(),
        ));
    }
    if time_namespace(&pid.to_string())? != time_namespace("self")? {
        return Err(Error::Unsupported("it is in another time namespace".into()));
    }
    let stack = InitialStack::read(tracee, registers.rsp)?;
    let maps = maps::of(pid)?;
    let instance = instance(tracee, kit, &stack, &maps)?;
    let code = Code::of(pid, &kit.scans, &stack, &maps)?;
    let plan = Plan {
        kit,
        instance,
        code,
        maps: &maps,
        stack: &stack,
    };

    let mut calls = RemoteCalls::begin(tracee, &maps, stack.bytes().len() + 64)?;
    match surgery::perform(&mut calls, &plan) {
        Ok(pointer) => {
            let mut registers = *calls.saved();
            registers.rsp = pointer;
            calls.finish(registers)
        }
        Err(Error::Gone) => Err(Error::Gone),
        Err(e) => calls.abandon().and(Err(e)),
    }
}

fn time_namespace(pid: &str) -> Result<Option<std::path::PathBuf>> {
    // A kernel without time namespaces has no such link.
    match std::fs::read_link(format!("/proc/{pid}/ns/time")) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("/proc/{pid}/ns/time"), e)),
    }
}

/// The image for this program: with the addresses of its own kernel functions.
fn instance(tracee: &mut Tracee, kit: &Kit, stack: &InitialStack, maps: &[Mapping]) -> Result<Instance> {
    let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("the kernel's vDSO: {e}"));
    let kernel = stack.get(AT_SYSINFO_EHDR).filter(|_| !kit.without_vdso);
    let Some(base) = kernel else {
        return Instance::new(None).map_err(|e| refuse(&e));
    };
    let mapping = maps
        .iter()
        .find(|m| m.start == base)
        .ok_or_else(|| refuse(&"it is not mapped where it should be"))?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    tracee.read(base, &mut bytes)?;
    let vdso = Vdso::parse(&bytes).map_err(|e| refuse(&e))?;
    Instance::new(Some((&vdso, base))).map_err(|e| refuse(&e))
}

/// Second visit: the loader has mapped the program's libraries, and the program waits in the hook at its entry.
/// `tracee` is stopped there.
pub fn install_in_libraries(tracee: &mut Tracee, kit: &Kit, maps: &[Mapping], region: u64) -> Result<()> {
    let pid = tracee.pid();
    let thunks = region + region::THUNKS;
    let mut used = sites::thunks_in_use(&tracee.read_words(thunks, 4096 / 8)?);
    let libraries = maps
        .iter()
        .filter(|m| m.executable && m.inode != 0 && program::is_c_library(&m.name));
    for mapping in libraries {
        if let Some((scan, bias)) = program::library(pid, &kit.scans, maps, mapping) {
            // Whatever stands when this fails is right by itself: nothing to take back.
            used += surgery::redirect(tracee, &scan.sites, bias, thunks, used, region, &mut Vec::new())?;
        }
    }
    Ok(())
}
