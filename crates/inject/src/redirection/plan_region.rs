//! The whole region of a process whose kernel's vDSO is redirected, as bytes.

use fastpath_image::{Image, Instance, Isa, Options, Placement, Vdso};
use fastpath_page::ClockSet;

use super::{EntryPatch, Journal, LeftAlone, Moved, Purpose, Record, State, plan};
use crate::abi;
use crate::error::{Error, Result};
use crate::region;

/// The region for a process, and the changes that put it in force.
#[derive(Debug, Clone)]
pub struct RegionPlan {
    /// Bytes of the region: image, hook, entry thunks and journal at their offsets, zeros where the page, the hook's
    /// state and the mailbox are to be mapped ([`crate::region`]). Everything but these three must be readable and
    /// executable.
    pub code: Vec<u8>,
    /// Changes that put the region in force, once it is mapped completely.
    pub patches: Vec<EntryPatch>,
    /// Overwritten instructions and their copies.
    pub moved: Vec<Moved>,
    /// Functions that stay on the kernel's path.
    pub left_alone: Vec<LeftAlone>,
    /// Contents of the region's journal; already in `code`.
    pub journal: Journal,
    /// Code for the program's own system calls for time. None, if the kernel's functions may change registers that a
    /// system call keeps.
    #[cfg(target_arch = "x86_64")]
    pub routines: fastpath_rescue::thunk::Routines,
}

/// Plans a region at `region_at` for a process whose kernel's vDSO has these bytes at `vdso_base`; `clocks` are those
/// that its page will answer. Refuses unless clock_gettime can be redirected.
pub fn region_for(vdso: &[u8], vdso_base: u64, region_at: u64, clocks: ClockSet) -> Result<RegionPlan> {
    let parsed = Vdso::parse(vdso).map_err(|e| Error::Unsupported(format!("the kernel's vDSO: {e}")))?;
    let isa = Isa::of_elf(parsed.machine(), parsed.is_64());
    let abi = isa.and_then(abi::of_isa).ok_or_else(|| {
        Error::Unsupported("its vDSO is of an instruction set whose programs are not redirected".into())
    })?;
    let (image, hook) = abi::of_this_build(abi)?;
    let image_at = region_at + region::IMAGE;
    let thunks_at = region_at + region::ENTRY_THUNKS;
    let redirection = plan(image, vdso, vdso_base, image_at, thunks_at, clocks)?;
    if let Some(why) = redirection.refusal() {
        return Err(Error::Unsupported(why));
    }
    let journal = Journal {
        state: State::InForce,
        vdso_base,
        clocks: clocks.0,
        records: redirection.patches.iter().map(Record::of).collect(),
    };
    let mut code = vec![0; region::ATTACHED_SIZE as usize];
    let mut put = |at: u64, room: u64, bytes: &[u8]| {
        if bytes.len() as u64 > room {
            return Err(Error::Unsupported(
                "its code is larger than its room in the region".into(),
            ));
        }
        code[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let instance = instance(image, image_at, &redirection)?;
    put(region::IMAGE, region::IMAGE_ROOM, instance.bytes())?;
    put(region::HOOK, region::THUNKS - region::HOOK, hook.code)?;
    put(region::JOURNAL, region::JOURNAL_ROOM, &journal.bytes()?)?;
    let room = region::ATTACHED_SIZE - region::ENTRY_THUNKS;
    put(region::ENTRY_THUNKS, room, &redirection.thunks)?;
    #[cfg(target_arch = "x86_64")]
    let routines = super::general::uses_general_registers(vdso, &parsed, &["clock_gettime", "gettimeofday", "time"])
        .then(|| routines(image, hook, &redirection, region_at, &mut code))
        .unwrap_or_default();
    Ok(RegionPlan {
        #[cfg(target_arch = "x86_64")]
        routines,
        code,
        patches: redirection.patches,
        moved: redirection.moved,
        left_alone: redirection.left_alone,
        journal,
    })
}

/// Fills in which functions the hook's routines call, in the region's `code`, and returns the routines' addresses.
#[cfg(target_arch = "x86_64")]
fn routines(
    image: &Image,
    hook: &abi::Hook,
    redirection: &super::Redirection,
    region_at: u64,
    code: &mut [u8],
) -> fastpath_rescue::thunk::Routines {
    let mut routines = fastpath_rescue::thunk::Routines::default();
    for (name, routine, answers) in hook.rescue {
        let function = match *name {
            // It follows the kernel's tick: only the kernel knows it.
            "time" => redirection.kernel.address(name),
            _ => {
                let mut functions = image.functions().iter();
                let found = functions.find(|function| super::plain_name(function.name) == *name);
                found.map_or(0, |function| region_at + region::IMAGE + function.offset)
            }
        };
        if function != 0 {
            let word = (region::HOOK + answers) as usize;
            code[word..word + 8].copy_from_slice(&function.to_le_bytes());
            routines.set(name, region_at + region::HOOK + routine);
        }
    }
    routines
}

impl RegionPlan {
    /// Adds changes of the program's own code.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn add(&mut self, records: &[Record], moved: &[Moved]) -> Result<()> {
        self.journal.records.extend_from_slice(records);
        self.moved.extend_from_slice(moved);
        let journal = self.journal.bytes()?;
        self.code[region::JOURNAL as usize..][..journal.len()].copy_from_slice(&journal);
        Ok(())
    }
}

fn instance(image: &Image, image_at: u64, redirection: &super::Redirection) -> Result<Instance> {
    let options = Options {
        kernel: redirection.kernel,
        ..Options::at(Placement::at(image_at))
    };
    Instance::new(image, &options).map_err(|e| Error::Unsupported(e.to_string()))
}

impl Record {
    fn of(patch: &EntryPatch) -> Record {
        Record {
            address: patch.address,
            original: patch.original.clone(),
            replacement: patch.replacement.clone(),
            thunk: 0,
            in_thunk: 0,
            in_place: 0,
            purpose: Purpose::Entry,
        }
    }
}
