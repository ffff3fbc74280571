//! Puts a program that has just been exec'd, and has not run an instruction, on the synthetic vDSO.

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use fastpath_image::{Image, KernelFunctions};
use fastpath_page::ClockSet;

use crate::abi::{self, Abi, Hook};
use crate::error::{Error, Result};
use crate::plan::calls::{Calls, ThunkPage, doors};
use crate::plan::hooked_files::{self, HookedFile};
use crate::plan::mailbox_layout::HookState;
use crate::plan::redirection::{self, Change, Journal, JournalRecord, JournalState, MOST_RECORDS, RegionPlan};
use crate::plan::region;
use crate::plan::rescued_calls::{self, Rescued, RescuedFile};
use crate::plan::{Plan, Seen, Withhold};
use crate::remote::apply::{revert, write};
use crate::remote::mapping::{self, Region};
use crate::remote::{self, RemoteCalls};
use crate::target::ThreadStatus;
use crate::target::maps::{self, Mapping};
use crate::target::memory::{CodePages, Memory, PAGE};
use crate::target::permissions::Permissions;
use crate::target::program::{self, Code};
use crate::target::sites;
use crate::target::stack::{AT_ENTRY, AT_SECURE, AT_SYSINFO, AT_SYSINFO_EHDR, InitialStack};
use crate::target::tracee::Tracee;

/// What every program of one `run` gets.
pub struct InjectionConfig {
    /// Page, to be mapped read-only.
    pub page: OwnedFd,
    /// Clocks that the page answers.
    pub clocks: ClockSet,
    /// Whether programs start as on a host whose kernel gives them no vDSO.
    pub without_vdso: bool,
    /// Whether programs get the synthetic vDSO. If not, they only get the hook, so that their descendants are treated
    /// alike.
    pub serve: bool,
    /// Whether the programs' own system calls for time are redirected too.
    pub rescue: bool,
    /// Decides whether a program that has just started, the process of this number, may be served. The error says why
    /// not.
    pub allows: Box<dyn Fn(i32) -> std::result::Result<(), String> + Send + Sync>,
    /// Number of seccomp filters that this process inherited, and under which its remote calls were tried. Programs with
    /// more are served only if those can be read, and allow fastpath's calls.
    pub filters: u32,
    /// Whether filters that were seen so far allow them.
    pub permissions: Permissions,
    /// Reason why 32-bit programs are left alone: those filters refuse their calls.
    pub refuses_32_bit: Option<String>,
    /// Process that programs must allow to trace them (PR_SET_PTRACER) before they ask, where Yama requires that; 0:
    /// none.
    pub ptracer: u32,
    /// Scans of the libraries seen so far.
    pub scans: sites::Cache,
}

/// Result of an installation.
#[derive(Debug)]
pub struct Installed {
    /// Number of places in the program's code that were changed.
    pub sites: usize,
    /// Reason why the programs that it executes will not be served.
    pub without_children: Option<String>,
}

/// Plans a region for this process's own vDSO, which is most likely the programs' too: no program is stopped yet.
pub fn prepare(config: &InjectionConfig) {
    fastpath_evidence::counter::choose_read();
    let own = std::process::id() as i32;
    if config.serve
        && !config.without_vdso
        && let Ok(maps) = maps::read(own)
        && let Some(vdso) = maps.iter().find(|mapping| mapping.name == "[vdso]")
        && let Ok(bytes) = Memory::open(own).and_then(|own| own.bytes(vdso.start, (vdso.end - vdso.start) as usize))
        && let Ok(at) = region::place_near(&maps, vdso.start)
    {
        let _ = redirection::region_for(&bytes, vdso.start, at, config.clocks, config.rescue);
    }
}

/// Refuses if the exec of this program's descendants would not be noticed, because another tool has changed the code of
/// the C library. That shows in this process, whose C library is most likely the program's.
fn require_execs(calls: &Calls, config: &InjectionConfig, hook: &Hook) -> Result<()> {
    let own = std::process::id() as i32;
    let mut maps = maps::read(own)?;
    // Another thread may be scanning the same files, which it maps as shared.
    maps.retain(|mapping| !mapping.shared);
    let memory = Memory::open(own)?;
    let mut here = Calls::at_most(MOST_RECORDS);
    // Under `run`, its own code is changed by fastpath.
    let is_served = maps.iter().any(redirection::is_region);
    let libraries = maps.iter().filter(|_| !is_served).filter(is_c_library);
    for file in libraries.filter_map(|mapping| hooked_file(own, &config.scans, &maps, mapping)) {
        let at = file.loaded.saturating_sub(PAGE);
        let mut page = ThunkPage::new(at, vec![0; PAGE as usize]);
        here.add(&CodePages::new(&memory), &file, &mut page, doors(hook, at));
    }
    let why = calls.changed_by_others.as_ref().or(here.changed_by_others.as_ref());
    why.map_or(Ok(()), |why| Err(Error::Unsupported(why.clone())))
}

fn is_c_library(mapping: &&Mapping) -> bool {
    mapping.executable && mapping.inode != 0 && program::is_c_library(&mapping.name)
}

/// Returns the library that a process has mapped at `mapping`.
fn hooked_file(pid: i32, scans: &sites::Cache, maps: &[Mapping], mapping: &Mapping) -> Option<HookedFile> {
    let (scan, bias) = program::library(pid, scans, maps, mapping)?;
    let loaded = bias.wrapping_add(scan.lowest);
    Some(HookedFile {
        sites: scan.sites.clone(),
        bias,
        loaded,
    })
}

/// Installs the region and redirects the program's start through it. `shown` is the status of its process; `mailbox` was
/// opened anew: the kernel counts it as long as a program maps it. On an error the program is as it was.
/// `must_see_execs`: it is an error if the exec of another program would not be noticed.
pub fn install(
    tracee: &mut Tracee,
    shown: &fastpath_os::Status,
    config: &InjectionConfig,
    mailbox: &OwnedFd,
    must_see_execs: bool,
) -> Result<Installed> {
    let pid = tracee.pid();
    let status = ThreadStatus::from(shown);
    let program = Program::read(tracee, &status, config)?;
    let hook = program.hook;
    let mut region = program.plan(config, program.place(config)?)?;
    let stays = region.put_slow_path()?;
    let memory = tracee.memory()?;
    let code = CodePages::new(&memory);
    if let Some((base, bytes)) = &program.vdso {
        code.add(*base, bytes);
    }
    let seen = Seen {
        pid,
        maps: &program.maps,
        code: &code,
        scans: &config.scans,
    };
    let withhold = |routines: &mut Vec<_>| match status.filters {
        0 => Vec::new(),
        _ => {
            routines.clear();
            vec!["it has a seccomp filter, which may answer these calls itself".to_owned()]
        }
    };
    let withhold = config.rescue.then_some(&withhold as Withhold<'_>);
    let files = hooked_files::at_exec(&program.code, hook);
    files.iter().for_each(|file| read_sites(tracee, &code, file));
    let mut plan = Plan::make(&seen, region, hook, &files, withhold)?;
    let unknown = program.code.unknown_linker();
    if must_see_execs {
        unknown.map_or(Ok(()), |why| Err(Error::Unsupported(why.into())))?;
        require_execs(&plan.calls, config, hook)?;
    }
    let start = program.start(config, &mut plan.region)?;
    let region = Region {
        plan: &plan,
        page: &config.page,
        mailbox,
        state: start.state,
    };
    let reserve = program.stack.bytes().len() as u64 + 64;
    // The calls of a batch include one that is not tried under this process's own filters.
    let end = shown.set("SigBlk").filter(|_| config.filters == 0);
    let end = end.and_then(|blocked| remote::End::for_process(status.inner_pid, blocked));
    // A host without a vDSO has no tail of it either.
    let has_tail = |mapping: &&Mapping| !(config.without_vdso && mapping.name == "[vdso]");
    let maps: Vec<Mapping> = program.maps.iter().filter(has_tail).cloned().collect();
    remote::at_exec(tracee, &maps, reserve, end, |calls| {
        region.map(calls)?;
        let done = put_in_force(calls, &region, &code, &stays, &start.stack);
        if done.is_err() {
            // A failure here leaves an unused part behind, never an incorrect one.
            let _ = mapping::unmap(calls, region.plan.region.at);
        }
        done?;
        if let Some((at, arguments)) = start.linker {
            calls.set_start(at, arguments);
        }
        Ok(())
    })?;
    Ok(Installed {
        sites: stays.len() + plan.region.journal.records.len(),
        without_children: unknown.map(str::to_owned).or(plan.calls.left_alone.into_iter().next()),
    })
}

/// Reads the pages of a file's sites by one call. What is not read here is read when it is compared.
fn read_sites(tracee: &mut Tracee, code: &CodePages<'_>, file: &HookedFile) {
    let pages: Vec<(u64, usize)> = file.pages().into_iter().map(|page| (page, PAGE as usize)).collect();
    for ((page, _), bytes) in pages.iter().zip(tracee.read_each(&pages).unwrap_or_default()) {
        code.add(*page, &bytes);
    }
}

/// Makes the changes that put a region in force, then sets the initial stack `stack`. Each change leaves a program that works,
/// because the region is complete: the order does not matter, and those of one page are one write. On an error the program's memory is as it was, but for what
/// `stays`, to which nothing refers then.
fn put_in_force(
    calls: &mut RemoteCalls<'_>,
    region: &Region<'_>,
    code: &CodePages<'_>,
    stays: &[JournalRecord],
    stack: &InitialStack,
) -> Result<()> {
    let records = &region.plan.region.journal.records;
    // Both may need the end of the vDSO's mapping.
    let erasure = calls.end_batch()?;
    let mut changes: Vec<&Change> = erasure.iter().collect();
    changes.extend(stays.iter().chain(records).map(|record| &record.change));
    let page = |change: &Change| change.address / PAGE;
    let pages: Vec<u64> = changes.iter().map(|change| page(change)).collect();
    changes.sort_by_key(|change| pages.iter().position(|first| *first == page(change)));
    write(calls.tracee(), code, &changes).map_err(|e| Error::Unsupported(e.to_string()))?;
    // One write, and only after it is the stack pointer moved.
    if let Err(e) = calls.tracee().write(stack.pointer, &stack.bytes()) {
        revert(calls.tracee(), &changes_of(records))?;
        return Err(e);
    }
    calls.set_stack_pointer(stack.pointer);
    Ok(())
}

fn changes_of(records: &[JournalRecord]) -> Vec<&Change> {
    records.iter().map(|record| &record.change).collect()
}

/// A program that is stopped at its exec.
struct Program {
    abi: &'static dyn Abi,
    image: &'static Image,
    hook: &'static Hook,
    /// Kernel's vDSO, if it has one: the address and the bytes of its code.
    vdso: Option<(u64, Vec<u8>)>,
    code: Code,
    maps: Vec<Mapping>,
    stack: InitialStack,
}

/// Start of a program on the synthetic vDSO.
struct Start {
    stack: InitialStack,
    state: HookState,
    /// Where a dynamic linker begins instead of at its entry point, and the arguments there.
    linker: Option<(u64, [u64; 2])>,
}

impl Program {
    /// Reads the program of a process with this status. Refuses one that cannot be served.
    fn read(tracee: &mut Tracee, status: &ThreadStatus, config: &InjectionConfig) -> Result<Program> {
        let registers = tracee.registers()?;
        let abi = abi::for_registers(&registers);
        if let Some(why) = config.refuses_32_bit.as_ref().filter(|_| abi.word() == 4) {
            return Err(Error::Unsupported(why.clone()));
        }
        let (image, hook) = abi::of_this_build(abi)?;
        let pid = tracee.pid();
        (config.allows)(pid).map_err(Error::Forbidden)?;
        if status.filters > config.filters {
            if abi.word() == 4 {
                return Err(Error::Unsupported(
                    "it is a 32-bit program with a seccomp filter".into(),
                ));
            }
            config.permissions.require(tracee, abi.isa())?;
        }
        if time_namespace(&pid.to_string())? != *OWN_TIME_NAMESPACE {
            return Err(Error::Unsupported("it is in another time namespace".into()));
        }
        let stack = InitialStack::read(tracee, registers.sp(), abi.word())?;
        // Set for setuid, file capabilities or a transition of an LSM, of the file that was executed in the end.
        if stack.get(AT_SECURE).is_some_and(|secure| secure != 0) {
            return Err(Error::Unsupported(
                "it runs with other privileges than its caller's".into(),
            ));
        }
        let maps = maps::read(pid)?;
        let code = Code::read(tracee, abi, &config.scans, &stack, &maps)?;
        Ok(Program {
            abi,
            image,
            hook,
            vdso: kernels_vdso(tracee, config, &stack, &maps)?,
            code,
            maps,
            stack,
        })
    }

    /// Returns whether AT_SYSINFO_EHDR will point to the image: there is no kernel's vDSO whose entry points could jump to it.
    fn image_is_vdso(&self, config: &InjectionConfig) -> bool {
        config.serve && (self.vdso.is_none() || !self.abi.redirects_vdso())
    }

    /// Returns where its region goes: near the kernel's vDSO, where the entry points jump to the image, or else beside
    /// its own code.
    fn place(&self, config: &InjectionConfig) -> Result<u64> {
        if let Some((base, _)) = self.vdso.as_ref().filter(|_| !self.image_is_vdso(config)) {
            return region::place_near(&self.maps, *base);
        }
        let beside = region::place_beside(&self.maps, self.code.lowest(), region::SIZE_WITH_OWN_IMAGE);
        beside.ok_or_else(|| Error::Unsupported("there is no room near the program".into()))
    }

    fn plan(&self, config: &InjectionConfig, at: u64) -> Result<RegionPlan> {
        let is_vdso = self.image_is_vdso(config);
        // A handler of Go's finds its goroutine where a signal came in the one page that has the vDSO's function, whose other
        // code may use that register (runtime.inVDSOPage). So behind the image are system calls there, not the kernel's functions.
        let is_go = self.code.program.0.is_go;
        let functions = match &self.vdso {
            Some((base, bytes)) if is_vdso && !is_go => redirection::functions_of(bytes, *base)?,
            Some((base, bytes)) if config.serve && !is_vdso => {
                return redirection::region_for(bytes, *base, at, config.clocks, config.rescue);
            }
            _ => KernelFunctions::NONE,
        };
        let functions = is_vdso.then_some(functions);
        RegionPlan::without_patches(self.abi, at, config.clocks, config.rescue, functions)
    }

    /// Returns the initial stack, with the addresses by which the program gets to the region, and what the hook must
    /// know. AT_ENTRY points to the hook where the C library is still to be mapped.
    fn start(&self, config: &InjectionConfig, plan: &mut RegionPlan) -> Result<Start> {
        let at = plan.at;
        let old = &self.stack;
        let mut stack = old.clone();
        if self.image_is_vdso(config) {
            stack.set(AT_SYSINFO_EHDR, at + region::IMAGE);
        } else if config.without_vdso {
            stack.remove(AT_SYSINFO_EHDR);
        }
        let sysinfo = self.sysinfo_thunk(config, at);
        if let Some(thunk) = &sysinfo {
            plan.put_sysinfo_thunk(thunk)?;
            stack.set(AT_SYSINFO, at + region::THUNKS);
        }
        plan.is_of_start(self.image_is_vdso(config) || !config.serve || sysinfo.is_some())?;
        let entry = old.get(AT_ENTRY).filter(|_| self.code.has_more_to_come());
        let detour = entry.zip(self.hook.entry);
        let linker = self.code.linker.zip(self.hook.linker);
        // A dynamic linker that finds its own entry point there loads a program.
        if let Some((_, door)) = detour.filter(|_| linker.is_none()) {
            stack.set(AT_ENTRY, at + region::HOOK + door);
        }
        if !stack.same_size(old) {
            stack.place_below(old);
        }
        let mut state = HookState {
            ptracer: config.ptracer,
            ..HookState::default()
        };
        if let (Some((entry, _)), Some(entry_cell)) = (detour, stack.address_of(AT_ENTRY)) {
            (state.entry, state.entry_cell) = (entry, entry_cell);
            // Until the libraries' calls are redirected, the hook would not see that the program confines itself.
            state.real_calls = 1;
        }
        let linker = linker.zip(self.hook.entry).map(|((arguments, linker), entry)| {
            // Until the program is entered, `detach` finds there that the region is needed.
            state.no_cell = at + region::HOOK + entry;
            state.entry_cell = at + region::STATE + offset_of!(HookState, no_cell) as u64;
            (at + region::HOOK + linker, arguments)
        });
        Ok(Start { stack, state, linker })
    }

    /// Returns the thunk that AT_SYSINFO will point to, in an ABI that has it. The thunk continues in the kernel's code
    /// if there is some, else in the image's.
    fn sysinfo_thunk(&self, config: &InjectionConfig, at: u64) -> Option<Vec<u8>> {
        let kernels = self.stack.get(AT_SYSINFO).filter(|_| !config.without_vdso);
        let ours = || Some(at + region::IMAGE + self.image.symbol("__kernel_vsyscall")?);
        let door = at + region::HOOK + self.hook.before_syscall;
        self.abi
            .sysinfo_thunk(at + region::THUNKS, door, kernels.or_else(ours)?)
    }
}

/// This process stays in it.
static OWN_TIME_NAMESPACE: LazyLock<Option<std::path::PathBuf>> =
    LazyLock::new(|| time_namespace("self").unwrap_or_default());

fn time_namespace(pid: &str) -> Result<Option<std::path::PathBuf>> {
    // A kernel without time namespaces has no such link.
    match std::fs::read_link(format!("/proc/{pid}/ns/time")) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("/proc/{pid}/ns/time"), e)),
    }
}

/// Returns the kernel's vDSO of a program: the address of its code, and the code.
fn kernels_vdso(
    tracee: &mut Tracee,
    config: &InjectionConfig,
    stack: &InitialStack,
    maps: &[Mapping],
) -> Result<Option<(u64, Vec<u8>)>> {
    let Some(base) = stack.get(AT_SYSINFO_EHDR).filter(|_| !config.without_vdso) else {
        return Ok(None);
    };
    let mapping = maps
        .iter()
        .find(|m| m.start == base)
        .ok_or_else(|| Error::Unsupported("the kernel's vDSO is not mapped where it should be".into()))?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    tracee.read(base, &mut bytes)?;
    Ok(Some((base, bytes)))
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
    let abi = abi::for_registers(&tracee.registers()?);
    let (_, hook) = abi::of_this_build(abi)?;
    let memory = tracee.memory()?;
    let is_rescued = config.rescue && ThreadStatus::read(&pid.to_string())?.filters == 0;
    let mut pieces = vec![
        (region + region::STATE, size_of::<u64>()),
        (region + region::JOURNAL, region::JOURNAL_ROOM as usize),
    ];
    pieces.extend(mapping::thunk_pages(maps).map(|page| (page.start, PAGE as usize)));
    let read = tracee.read_each(&pieces)?;
    let [entry, journal, thunks @ ..] = &read[..] else {
        return Err(Error::Gone);
    };
    let mut journal = Journal::parse(journal).ok_or(Error::Gone)?;
    // Only a program that was started through its hook still needs its libraries redirected. In an attached program, the
    // journal lists the changes.
    if journal.state == JournalState::Withdrawn || *entry == [0; size_of::<u64>()] {
        return Err(Error::Gone);
    }
    let thunks = pieces[2..].iter().zip(thunks);
    let mut pages: Vec<ThunkPage> = thunks
        .map(|((at, _), bytes)| ThunkPage::new(*at, bytes.clone()))
        .collect();
    let reaches_rare = program::reaches_rare(pid, &config.scans, maps);
    for mapping in program::code_of_files(maps)
        .filter(is_c_library)
        .take(program::MOST_LIBRARIES)
    {
        let Some(mut file) = hooked_file(pid, &config.scans, maps, mapping) else {
            continue;
        };
        file.sites.retain(|site| reaches_rare || !site.is_rare());
        let loaded = file.loaded;
        let Some(page) = pages.iter_mut().min_by_key(|page| page.at.abs_diff(loaded)) else {
            continue;
        };
        let used = page.used;
        let mut calls = Calls::at_most(journal.room());
        let code = CodePages::new(&memory);
        read_sites(tracee, &code, &file);
        calls.add(&code, &file, page, doors(hook, region));
        if is_rescued && let Some(file) = RescuedFile::scan(pid, maps, mapping, &config.scans) {
            let routines = rescued_calls::routines_of(&memory, abi.isa(), hook, region);
            let mut result = Rescued::default();
            rescued_calls::add_file(&code, &file, &routines, &mut calls, page, &mut result);
        }
        // The jumps last: what they need is complete before. If this fails, those made so far work.
        tracee.write(page.at + used as u64, &page.bytes[used..page.used])?;
        journal.records.extend_from_slice(&calls.records);
        tracee.write(region + region::JOURNAL, &journal.bytes()?)?;
        write(tracee, &code, &changes_of(&calls.records)).map_err(|e| Error::Unsupported(e.to_string()))?;
    }
    let real_calls = region + region::STATE + offset_of!(HookState, real_calls) as u64;
    tracee.write(real_calls, &0u32.to_ne_bytes())
}
