//! Puts a program that has just been exec'd, and has not run an instruction, on the synthetic vDSO.

use std::os::fd::OwnedFd;

use fastpath_image::{KernelFunctions, vdso::Vdso};

use crate::abi;
use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::program::{self, Code};
use crate::region;
use crate::remote;
use crate::sites;
use crate::stack::{AT_PAGESZ, AT_SECURE, AT_SYSINFO_EHDR, InitialStack};
use crate::surgery::{self, KernelVdso, Plan};
use crate::target::Status;
use crate::tracee::Tracee;

/// What every program of one `run` gets.
pub struct InjectionConfig {
    /// Page, to be mapped read-only.
    pub page: OwnedFd,
    /// Opens the mailbox anew: the kernel counts this descriptor as long as a program maps it.
    pub mailbox: Box<dyn Fn() -> Result<OwnedFd> + Send + Sync>,
    /// Whether programs start as on a host whose kernel gives them no vDSO.
    pub without_vdso: bool,
    /// Whether programs get the synthetic vDSO. If not, they only get the hook, so that their descendants are treated
    /// alike.
    pub serve: bool,
    /// Returns whether a program that has just started, the process of this number, is to be served.
    pub allows: Box<dyn Fn(i32) -> bool + Send + Sync>,
    /// Number of seccomp filters that this process inherited, and under which its remote calls were tried.
    pub filters: u32,
    /// Reason why 32-bit programs are left alone: those filters refuse their calls.
    pub refuses_32_bit: Option<String>,
    /// Process that programs must allow to trace them (PR_SET_PTRACER) before they ask, where Yama requires that; 0:
    /// none.
    pub ptracer: u32,
    /// Scans of the libraries seen so far.
    pub scans: sites::Cache,
}

/// Installs the region and redirects the program's start through it. On an error the program is as it was.
pub fn install(tracee: &mut Tracee, config: &InjectionConfig) -> Result<()> {
    let registers = tracee.registers()?;
    let abi = abi::of(&registers);
    if let Some(why) = config.refuses_32_bit.as_ref().filter(|_| abi.word() == 4) {
        return Err(Error::Unsupported(why.clone()));
    }
    let (image, hook) = abi::of_this_build(abi)?;
    let pid = tracee.pid();
    if !(config.allows)(pid) {
        return Err(Error::Unsupported("a policy says never".into()));
    }
    if Status::of(&pid.to_string())?.filters > config.filters {
        return Err(Error::Unsupported(
            "it has a seccomp filter that this process cannot try out".into(),
        ));
    }
    if time_namespace(&pid.to_string())? != time_namespace("self")? {
        return Err(Error::Unsupported("it is in another time namespace".into()));
    }
    let stack = InitialStack::read(tracee, registers.sp(), abi.word())?;
    // Set for setuid, file capabilities or a transition of an LSM, of the file that was executed in the end.
    if stack.get(AT_SECURE).is_some_and(|secure| secure != 0) {
        return Err(Error::Unsupported(
            "it runs with other privileges than its caller's".into(),
        ));
    }
    if let Some(bytes) = stack.get(AT_PAGESZ) {
        region::suits_pages_of(bytes)?;
    }
    let maps = maps::of(pid)?;
    let (kernel, vdso) = kernels(tracee, config, &stack, &maps)?;
    let sysinfo = image.symbol("__kernel_vsyscall");
    let code = Code::of(pid, &config.scans, &stack, &maps)?;
    let plan = Plan {
        config,
        image,
        kernel,
        hook,
        beside: vdso.filter(|_| sysinfo.is_some()),
        sysinfo,
        code,
        maps: &maps,
        stack: &stack,
    };

    let reserve = stack.bytes().len() as u64 + 64;
    remote::at_exec(tracee, &maps, reserve, |calls| surgery::perform(calls, &plan))
}

fn time_namespace(pid: &str) -> Result<Option<std::path::PathBuf>> {
    // A kernel without time namespaces has no such link.
    match std::fs::read_link(format!("/proc/{pid}/ns/time")) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("/proc/{pid}/ns/time"), e)),
    }
}

/// Returns the functions of this program's own vDSO, and the vDSO itself.
fn kernels(
    tracee: &mut Tracee,
    config: &InjectionConfig,
    stack: &InitialStack,
    maps: &[Mapping],
) -> Result<(KernelFunctions, Option<KernelVdso>)> {
    let refuse = |e: &dyn std::fmt::Display| Error::Unsupported(format!("the kernel's vDSO: {e}"));
    let kernel = stack.get(AT_SYSINFO_EHDR).filter(|_| !config.without_vdso);
    let Some(base) = kernel else {
        return Ok((KernelFunctions::NONE, None));
    };
    let mapping = maps
        .iter()
        .find(|m| m.start == base)
        .ok_or_else(|| refuse(&"it is not mapped where it should be"))?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    tracee.read(base, &mut bytes)?;
    let vdso = Vdso::parse(&bytes).map_err(|e| refuse(&e))?;
    let functions = KernelFunctions::of(&vdso, base);
    Ok((functions, Some(KernelVdso::new(maps, mapping, bytes))))
}

/// Redirects the calls in the program's libraries. On this second visit the loader has mapped them, and the program
/// waits in the hook at its entry, where `tracee` is stopped.
pub fn install_in_libraries(
    tracee: &mut Tracee,
    config: &InjectionConfig,
    maps: &[Mapping],
    region: u64,
) -> Result<()> {
    let pid = tracee.pid();
    let thunks = region + region::THUNKS;
    let (_, hook) = abi::of_this_build(abi::of(&tracee.registers()?))?;
    let doors = surgery::doors(hook, region);
    let mut used = sites::thunks_in_use(&tracee.read_words(thunks, 4096 / 8, 8)?);
    let libraries = maps
        .iter()
        .filter(|m| m.executable && m.inode != 0 && program::is_c_library(&m.name));
    for mapping in libraries {
        if let Some((scan, bias)) = program::library(pid, &config.scans, maps, mapping) {
            // If this fails, the redirections made so far are complete: there is nothing to undo.
            used += surgery::redirect(tracee, &scan.sites, bias, thunks, used, doors, &mut Vec::new())?;
        }
    }
    Ok(())
}
