//! The whole region of a process, as bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use fastpath_code::rescue::thunk::Routine;
use fastpath_image::{Instance, InstanceConfig, Isa, KernelFunctions};
use fastpath_page::ClockSet;

use super::slow_path::SlowPath;
use super::{Journal, JournalRecord, JournalState, LeftAlone, Moved, Redirection, parse, plan};
use crate::abi::{self, Abi};
use crate::error::{Error, Result};
use crate::plan::calls::Calls;
use crate::plan::region;

/// The region for a process, and the changes that put it in force.
#[derive(Debug, Clone)]
pub struct RegionPlan {
    /// Address of its start.
    pub at: u64,
    /// Bytes of the region: image, hook, entry thunks and journal at their offsets, zeros where the page, the hook's
    /// state and the mailbox are to be mapped ([`crate::plan::region`]). Everything but these three must be readable and
    /// executable.
    pub code: Vec<u8>,
    /// Bytes of the image that the program's vDSO is, or goes to, if fastpath's own code uses another: that is the one in
    /// `code`.
    pub vdso: Vec<u8>,
    /// Changes for a program that is starting.
    slow_path: SlowPath,
    /// Overwritten instructions and their copies.
    pub moved: Vec<Moved>,
    /// Functions that stay on the kernel's path.
    pub left_alone: Vec<LeftAlone>,
    /// Contents of the region's journal, with the changes that put it in force; already in `code`.
    pub journal: Journal,
    /// Code for the program's own system calls for time. None, unless they were asked for.
    pub routines: Vec<Routine>,
}

/// Plans a region at `region_at` for a process whose kernel's vDSO has these bytes at `vdso_base`; `clocks` are those
/// that its page will answer. `rescue`: its own system calls for time are to be redirected too. Refuses unless
/// clock_gettime can be redirected.
pub fn region_for(vdso: &[u8], vdso_base: u64, region_at: u64, clocks: ClockSet, rescue: bool) -> Result<RegionPlan> {
    let is_it = |known: &&Arc<Known>| known.suits(vdso, vdso_base, region_at, clocks);
    // Never waits: after a fork, the lock of another thread would stay locked.
    let known = || KNOWN.try_lock().ok();
    let found = known().and_then(|known| known.iter().find(is_it).cloned());
    let planned = match found {
        Some(found) => found,
        None => {
            let planned = Arc::new(Known::plan(vdso, vdso_base, region_at, clocks)?);
            if let Some(mut known) = known() {
                known.truncate(MOST_KNOWN - 1);
                known.push_front(planned.clone());
            }
            planned
        }
    };
    planned.region(vdso_base, rescue)
}

/// A redirection that was planned once: all programs of a host have the same vDSO, at different addresses.
pub(super) struct Known {
    vdso: Vec<u8>,
    vdso_base: u64,
    region_at: u64,
    clocks: ClockSet,
    abi: &'static dyn Abi,
    redirection: Redirection,
}

/// The last ones, of programs of 64 and 32 bits.
static KNOWN: Mutex<VecDeque<Arc<Known>>> = Mutex::new(VecDeque::new());
const MOST_KNOWN: usize = 8;

impl Known {
    /// Returns whether this is the plan for a program, but for the address, where that does not matter.
    pub(super) fn suits(&self, vdso: &[u8], vdso_base: u64, region_at: u64, clocks: ClockSet) -> bool {
        let distance = vdso_base.wrapping_sub(self.vdso_base);
        self.clocks == clocks
            && region_at == self.region_at.wrapping_add(distance)
            && (distance == 0 || self.abi.isa() == Isa::X86_64)
            && self.vdso == vdso
    }

    pub(super) fn plan(vdso: &[u8], vdso_base: u64, region_at: u64, clocks: ClockSet) -> Result<Known> {
        let parsed = parse(vdso)?;
        let isa = Isa::of_elf(parsed.machine(), parsed.is_64());
        let abi = isa.and_then(abi::of_isa).ok_or_else(|| {
            Error::Unsupported("its vDSO is of an instruction set whose programs are not redirected".into())
        })?;
        let (image, _) = abi::of_this_build(abi)?;
        Ok(Known {
            vdso: vdso.to_vec(),
            vdso_base,
            region_at,
            clocks,
            abi,
            redirection: plan(image, vdso, vdso_base, region_at, clocks)?,
        })
    }

    /// Returns the region for a program that the plan suits.
    pub(super) fn region(&self, vdso_base: u64, rescue: bool) -> Result<RegionPlan> {
        let distance = vdso_base.wrapping_sub(self.vdso_base);
        let redirection = self.redirection.higher_by(distance);
        if let Some(why) = redirection.refusal() {
            return Err(Error::Unsupported(why));
        }
        let region_at = self.region_at.wrapping_add(distance);
        let mut plan = RegionPlan::from_redirection(self.abi, region_at, redirection, vdso_base, self.clocks)?;
        // 32-bit programs' hook has no routines.
        if rescue && self.abi.hook().is_some_and(|hook| !hook.rescue.is_empty()) {
            let image = region::IMAGE as usize..region::HOOK as usize;
            plan.vdso = plan.code[image].to_vec();
            plan.add_own_image(self.abi)?;
            plan.put_routines(self.abi)?;
        }
        Ok(plan)
    }
}

impl RegionPlan {
    /// Plans a region at `region_at` for a program without a kernel's vDSO, or one whose vDSO is left alone. With `functions`, the
    /// image is to be the program's vDSO, and falls back to these.
    pub(crate) fn without_patches(
        abi: &dyn Abi,
        region_at: u64,
        clocks: ClockSet,
        rescue: bool,
        functions: Option<KernelFunctions>,
    ) -> Result<RegionPlan> {
        let mut plan = RegionPlan::from_redirection(abi, region_at, Redirection::default(), 0, clocks)?;
        if let Some(functions) = functions {
            plan.vdso = vdso_of(abi, region_at, functions)?;
            plan.add_own_image(abi)?;
        }
        if rescue {
            plan.put_routines(abi)?;
        }
        Ok(plan)
    }

    fn from_redirection(
        abi: &dyn Abi,
        region_at: u64,
        redirection: Redirection,
        vdso_base: u64,
        clocks: ClockSet,
    ) -> Result<RegionPlan> {
        let (image, hook) = abi::of_this_build(abi)?;
        let instance = redirection.instance(image, region_at)?;
        let journal = Journal {
            state: JournalState::InForce,
            is_of_start: false,
            vdso_base,
            clocks: clocks.0,
            records: redirection.patches,
        };
        let mut plan = RegionPlan {
            at: region_at,
            code: vec![0; region::SIZE as usize],
            vdso: Vec::new(),
            slow_path: redirection.slow_path,
            moved: redirection.moved,
            left_alone: redirection.left_alone,
            journal,
            routines: Vec::new(),
        };
        plan.put(region::IMAGE..region::HOOK, instance.bytes())?;
        plan.put(region::HOOK..region::THUNKS, hook.code)?;
        plan.put(region::ENTRY_THUNKS..region::SIZE, &redirection.thunks)?;
        plan.write_journal()?;
        Ok(plan)
    }

    /// Puts bytes at the start of a part of the region.
    fn put(&mut self, part: Range<u64>, bytes: &[u8]) -> Result<()> {
        let room = &mut self.code[part.start as usize..part.end as usize];
        let room = room
            .get_mut(..bytes.len())
            .ok_or_else(|| Error::Unsupported("its code is larger than its room in the region".into()))?;
        room.copy_from_slice(bytes);
        Ok(())
    }

    /// Fills in which functions the hook's routines call: those of an image that asks the kernel by system calls. The program
    /// may have unmapped its vDSO.
    fn put_routines(&mut self, abi: &dyn Abi) -> Result<()> {
        let (image, hook) = abi::of_this_build(abi)?;
        let image_at = match self.vdso.is_empty() {
            true => self.at + region::IMAGE,
            false => self.at + region::OWN_IMAGE,
        };
        for (name, routine, answers) in hook.rescue {
            let function = super::function_of(image, name).map_or(0, |code| image_at + code.start);
            if function != 0 {
                let word = region::HOOK + answers;
                self.put(word..word + 8, &function.to_le_bytes())?;
                let routine = Routine::for_call(abi.isa(), name, self.at + region::HOOK + routine);
                self.routines.extend(routine);
            }
        }
        Ok(())
    }

    /// Puts the slow path into the vDSO, too, in a program that is starting. Returns what is to be written first, and stays.
    pub fn put_slow_path(&mut self) -> Result<Vec<JournalRecord>> {
        let slow_path = std::mem::take(&mut self.slow_path);
        if let Some(body) = self.journal.records.first_mut().filter(|_| !slow_path.body.is_empty()) {
            body.change.replacement = slow_path.body;
        }
        for (at, bytes) in slow_path.descriptions {
            match self.vdso.get_mut(at as usize..) {
                Some(described) => described[..bytes.len()].copy_from_slice(&bytes),
                None => self.put(region::IMAGE + at..region::HOOK, &bytes)?,
            }
        }
        self.journal.records.extend(slow_path.records);
        self.write_journal()?;
        Ok(slow_path.stays)
    }

    fn write_journal(&mut self) -> Result<()> {
        let journal = self.journal.bytes()?;
        self.put(region::JOURNAL..region::ENTRY_THUNKS, &journal)
    }

    /// Adds changes of the program's own code.
    pub(crate) fn add(&mut self, calls: &Calls) -> Result<()> {
        self.journal.records.extend_from_slice(&calls.records);
        self.moved.extend_from_slice(&calls.moved);
        self.write_journal()
    }

    /// Notes that the program is started with the region, and whether it can never be unmapped.
    pub(crate) fn is_of_start(&mut self, is_kept: bool) -> Result<()> {
        self.journal.is_of_start = true;
        if is_kept {
            self.journal.state = JournalState::Kept;
        }
        self.write_journal()
    }

    /// Adds a second image, for fastpath's own code, which asks the kernel by system calls.
    fn add_own_image(&mut self, abi: &dyn Abi) -> Result<()> {
        let (image, _) = abi::of_this_build(abi)?;
        let own = Instance::new(
            image,
            &InstanceConfig::at(region::placement(self.at, region::OWN_IMAGE)),
        );
        let own = own.map_err(|e| Error::Unsupported(e.to_string()))?;
        self.put(region::IMAGE..region::HOOK, own.bytes())
    }

    /// Puts the thunk for AT_SYSINFO.
    pub(crate) fn put_sysinfo_thunk(&mut self, thunk: &[u8]) -> Result<()> {
        self.put(region::THUNKS..region::STATE, thunk)
    }
}

/// Returns the image in the region at `region_at` that is a program's vDSO, and falls back to these functions.
fn vdso_of(abi: &dyn Abi, region_at: u64, kernel: KernelFunctions) -> Result<Vec<u8>> {
    let (image, _) = abi::of_this_build(abi)?;
    let redirection = Redirection {
        kernel,
        ..Redirection::default()
    };
    let mut vdso = redirection.instance(image, region_at)?;
    // It would only make the system call. glibc returns the function's result as it is, without errno.
    vdso.hide(image, "time");
    Ok(vdso.bytes().to_vec())
}
