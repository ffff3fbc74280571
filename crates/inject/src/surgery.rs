//! The steps of an installation in a stopped program, each of which can be undone.

use fastpath_image::{Image, Instance, KernelFunctions, Options, Placement};

use crate::abi::{Call, Hook};
use crate::error::{Error, Result};
use crate::install::InjectionConfig;
use crate::mailbox_layout::HookState;
use crate::maps::{self, Mapping};
use crate::program::Code;
use crate::region;
use crate::remote::{self, RemoteCalls, counter_is_readable};
use crate::sites::{self, Doors, Patch, Site};
use crate::stack::{AT_ENTRY, AT_SYSINFO, AT_SYSINFO_EHDR, InitialStack};
use crate::tracee::Tracee;
use crate::unwind;

/// Parts to install, and facts about the program.
pub struct Plan<'a> {
    pub config: &'a InjectionConfig,
    pub image: &'static Image,
    pub kernel: KernelFunctions,
    /// Kernel's vDSO, where the program's calls go through it.
    pub beside: Option<KernelVdso>,
    pub hook: &'static Hook,
    /// Offset of the image's own `__kernel_vsyscall`.
    pub sysinfo: Option<u64>,
    pub code: Code,
    pub maps: &'a [Mapping],
    pub stack: &'a InitialStack,
}

/// Kernel's vDSO in the program.
pub struct KernelVdso {
    /// Start of its data, which lies below the code.
    pub lowest: u64,
    /// Start of its code.
    pub base: u64,
    /// Bytes of its code.
    pub bytes: Vec<u8>,
}

impl KernelVdso {
    /// Finds it by its code's mapping: the kernel maps the data right below.
    pub fn new(maps: &[Mapping], code: &Mapping, bytes: Vec<u8>) -> KernelVdso {
        let mut lowest = code.start;
        while let Some(data) = maps.iter().find(|m| m.end == lowest && m.name.starts_with("[vvar")) {
            lowest = data.start;
        }
        KernelVdso {
            lowest,
            base: code.start,
            bytes,
        }
    }
}

enum Undo {
    Unmap(u64, u64),
    Close(u64),
    Restore(Patch),
}

struct Surgery<'c, 't> {
    calls: &'c mut RemoteCalls<'t>,
    undo: Vec<Undo>,
}

/// Carries the plan out. On an error the program's memory is as it was.
pub fn perform(calls: &mut RemoteCalls<'_>, plan: &Plan<'_>) -> Result<()> {
    let mut surgery = Surgery {
        calls,
        undo: Vec::new(),
    };
    let done = surgery.attempt(plan);
    if done.is_err() {
        surgery.take_back();
    }
    done
}

impl Surgery<'_, '_> {
    fn take_back(&mut self) {
        while let Some(step) = self.undo.pop() {
            // A failure here leaves an unused part behind, never an incorrect one.
            let _ = match step {
                Undo::Unmap(at, size) => self.calls.munmap(at, size),
                Undo::Close(fd) => self.calls.close(fd),
                Undo::Restore(patch) => self.calls.tracee().write(patch.address, &patch.bytes),
            };
        }
    }

    fn attempt(&mut self, plan: &Plan<'_>) -> Result<()> {
        if !counter_is_readable(self.calls)? {
            return Err(Error::Unsupported(
                "the counter may not be read there (PR_SET_TSC)".into(),
            ));
        }
        let region = self.map_region(plan)?;
        self.map_shared(plan.config, region)?;
        let options = Options {
            kernel: plan.kernel,
            ..Options::at(Placement::at(region + region::IMAGE))
        };
        let instance = Instance::new(plan.image, &options).map_err(|e| Error::Unsupported(e.to_string()))?;
        let mut bytes = instance.bytes().to_vec();
        if let Some(vdso) = plan.beside.as_ref().filter(|vdso| vdso.lowest == region + region::SIZE) {
            // If this fails, unwinding stops in the kernel's code, and everything else works.
            let _ = unwind::join(&mut bytes, region + region::IMAGE, &vdso.bytes, vdso.base);
        }
        if bytes.len() as u64 > region::IMAGE_ROOM {
            return Err(Error::Unsupported("the image is larger than its room".into()));
        }
        let tracee = self.calls.tracee();
        tracee.write(region + region::IMAGE, &bytes)?;
        tracee.write(region + region::HOOK, plan.hook.code)?;
        self.redirect_calls(plan, region)?;
        self.redirect_start(plan, region)
    }

    /// Maps the region. A static program's calls are in its own text, so the region goes near it. A dynamic program's
    /// calls are in libraries, which the kernel and the loader map near each other.
    fn map_region(&mut self, plan: &Plan<'_>) -> Result<u64> {
        let below = plan
            .beside
            .as_ref()
            .and_then(|vdso| vdso.lowest.checked_sub(region::SIZE));
        if let Some(at) = below.filter(|at| maps::is_free(plan.maps, *at, region::SIZE)) {
            return self.map_code(at, region::SIZE, libc::MAP_FIXED_NOREPLACE);
        }
        match plan.code.near.filter(|_| !plan.code.program.0.is_dynamic()) {
            Some(loaded) => self.map_near(plan.maps, loaded, region::SIZE),
            None => self.map_code(0, region::SIZE, 0),
        }
    }

    fn redirect_calls(&mut self, plan: &Plan<'_>, region: u64) -> Result<()> {
        let thunks = region + region::THUNKS;
        let doors = doors(plan.hook, region);
        let mut used = 0;
        if let Some((scan, bias)) = &plan.code.interpreter {
            used = self.redirect(&scan.sites, *bias, thunks, 0, doors)?;
        }
        let (program, bias) = &plan.code.program;
        match plan.code.near {
            // A dynamic program with calls of its own (Go's) is out of the region's reach.
            Some(loaded) if program.is_dynamic() => {
                let thunks = self.map_near(plan.maps, loaded, 4096)?;
                self.redirect(&program.sites, *bias, thunks, 0, doors)?;
            }
            Some(_) => {
                self.redirect(&program.sites, *bias, thunks, used, doors)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Points AT_SYSINFO_EHDR at the image, and AT_ENTRY at the hook where the C library is still to be mapped.
    fn redirect_start(&mut self, plan: &Plan<'_>, region: u64) -> Result<()> {
        let old = plan.stack;
        let mut new = old.clone();
        if plan.config.serve {
            new.set(AT_SYSINFO_EHDR, region + region::IMAGE);
        } else if plan.config.without_vdso {
            new.remove(AT_SYSINFO_EHDR);
        }
        if let Some(sysinfo) = self.sysinfo(plan, region)? {
            new.set(AT_SYSINFO, sysinfo);
        }
        let entry = old.get(AT_ENTRY).filter(|_| plan.code.has_more_to_come());
        let detour = entry.zip(plan.hook.entry);
        if let Some((_, door)) = detour {
            new.set(AT_ENTRY, region + region::HOOK + door);
        }
        if !new.same_size(old) {
            new.place_below(old);
        }
        let mut state = HookState {
            ptracer: plan.config.ptracer,
            ..HookState::default()
        };
        if let (Some((entry, _)), Some(entry_cell)) = (detour, new.address_of(AT_ENTRY)) {
            (state.entry, state.entry_cell) = (entry, entry_cell);
        }
        self.calls.tracee().write(region + region::STATE, &state.bytes())?;
        // The last step: one write, and only after it is the stack pointer moved.
        self.calls.tracee().write(new.pointer, &new.bytes())?;
        self.calls.set_stack_pointer(new.pointer);
        Ok(())
    }

    /// Writes the thunk that AT_SYSINFO will point to, in an ABI that has it. The thunk continues in the kernel's code
    /// if there is some.
    fn sysinfo(&mut self, plan: &Plan<'_>, region: u64) -> Result<Option<u64>> {
        let abi = self.calls.abi();
        let at = region + region::THUNKS;
        let kernels = plan.stack.get(AT_SYSINFO).filter(|_| !plan.config.without_vdso);
        let ours = || Some(region + region::IMAGE + plan.sysinfo?);
        let Some(next) = kernels.or_else(ours) else {
            return Ok(None);
        };
        let Some(thunk) = abi.sysinfo_thunk(at, region + region::HOOK + plan.hook.before_syscall, next) else {
            return Ok(None);
        };
        self.calls.tracee().write(at, &thunk)?;
        Ok(Some(at))
    }

    fn map_code(&mut self, at: u64, size: u64, extra: i32) -> Result<u64> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra;
        let mapped = self.calls.mmap(at, size, protection, flags, u64::MAX, 0)?;
        self.undo.push(Undo::Unmap(mapped, size));
        if at != 0 && mapped != at {
            return Err(Error::Unsupported("no room next to the program".into()));
        }
        Ok(mapped)
    }

    fn map_near(&mut self, maps: &[Mapping], loaded: u64, size: u64) -> Result<u64> {
        // Go's programs for AArch64 begin at 64 KiB: there is no room below.
        let at = maps::gap_below(maps, loaded, size, region::GUARD)
            .or_else(|| maps::gap_above(maps, loaded, size, region::GUARD_ABOVE))
            .ok_or_else(|| Error::Unsupported("no room next to the program".into()))?;
        self.map_code(at, size, libc::MAP_FIXED_NOREPLACE)
    }

    /// Maps the page and the mailbox over the region, and makes the hook's state writable.
    fn map_shared(&mut self, config: &InjectionConfig, region: u64) -> Result<()> {
        let mailbox = (config.mailbox)()?;
        let fds = remote::pass(self.calls, [&config.page, &mailbox])?;
        self.undo.extend(fds.map(Undo::Close));
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        let places = [
            (region + region::PAGE, libc::PROT_READ, fds[0]),
            (region + region::MAILBOX, write, fds[1]),
        ];
        for (at, protection, fd) in places {
            self.calls.mmap(at, 4096, protection, shared, fd, 0)?;
        }
        let state = [region + region::STATE, 4096, write as u64, 0, 0, 0];
        self.calls.call("mprotect", Call::Mprotect, state)?;
        for fd in fds {
            self.calls.close(fd)?;
            self.undo.retain(|u| !matches!(u, Undo::Close(open) if *open == fd));
        }
        Ok(())
    }

    fn redirect(&mut self, sites: &[Site], bias: u64, thunks: u64, used: usize, doors: Doors) -> Result<usize> {
        let mut displaced = Vec::new();
        let done = redirect(self.calls.tracee(), sites, bias, thunks, used, doors, &mut displaced);
        self.undo.extend(displaced.into_iter().map(Undo::Restore));
        done
    }
}

/// Redirects `sites` through thunks on the page at `thunks`, of which `used` are taken; returns how many more are
/// taken. The bytes that each jump replaces are added to `displaced`. A site whose bytes differ from those in its file
/// is left alone.
pub fn redirect(
    tracee: &mut Tracee,
    sites: &[Site],
    bias: u64,
    thunks: u64,
    used: usize,
    doors: Doors,
    displaced: &mut Vec<Patch>,
) -> Result<usize> {
    let redirects = sites::redirects(sites, bias, thunks, used, doors);
    for redirect in &redirects {
        let mut found = vec![0; redirect.jump.bytes.len()];
        tracee.read(redirect.jump.address, &mut found)?;
        if found != redirect.expected {
            continue;
        }
        // The thunk first: a jump is written only when its target is complete.
        tracee.write(redirect.thunk.address, &redirect.thunk.bytes)?;
        displaced.push(Patch {
            address: redirect.jump.address,
            bytes: found,
        });
        tracee.write(redirect.jump.address, &redirect.jump.bytes)?;
    }
    Ok(redirects.len())
}

/// Returns the addresses of the hook's doors in a process with this region.
pub fn doors(hook: &Hook, region: u64) -> Doors {
    let start = region + region::HOOK;
    Doors {
        c: start + hook.before_syscall,
        go: start + hook.before_syscall_go.unwrap_or(hook.before_syscall),
    }
}
