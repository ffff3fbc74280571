//! The plan of an installation: what a process gets, and the changes that put it in force. It is made from the process's
//! mappings and bytes, changes nothing, and is carried out at an exec (`install.rs`) or in a running process (`attach/`).

pub mod calls;
pub mod hooked_files;
#[allow(dead_code)] // the build script uses the rest
pub mod mailbox_layout;
pub mod redirection;
pub mod region;
pub mod rescued_calls;

use fastpath_code::rescue::thunk::Routine;

use crate::abi::Hook;
use crate::error::Result;
use crate::plan::calls::Calls;
use crate::plan::hooked_files::HookedFile;
use crate::plan::redirection::RegionPlan;
use crate::plan::rescued_calls::Rescued;
use crate::target::maps::Mapping;
use crate::target::memory::CodePages;
use crate::target::sites::Cache;

/// Removes the routines for calls that a process's filters may answer, and returns the reasons.
pub type Withhold<'a> = &'a dyn Fn(&mut Vec<Routine>) -> Vec<String>;

/// A process as it is.
pub struct Seen<'a> {
    pub pid: i32,
    pub maps: &'a [Mapping],
    pub code: &'a CodePages<'a>,
    pub scans: &'a Cache,
}

/// What a process gets.
pub struct Plan {
    pub region: RegionPlan,
    /// Its own system calls that are redirected.
    pub calls: Calls,
    /// Outcome for its system calls for time, if they were to be redirected.
    pub rescued: Option<Rescued>,
}

impl Plan {
    /// Adds to a region the calls that `hook` must see, in these files, and, with `withhold`, those for time.
    pub fn make(
        seen: &Seen<'_>,
        mut region: RegionPlan,
        hook: &Hook,
        files: &[HookedFile],
        withhold: Option<Withhold<'_>>,
    ) -> Result<Plan> {
        let mut calls = Calls::plan(seen.code, seen.maps, &region, hook, files);
        let mut rescued = None;
        if let Some(withhold) = withhold {
            let withheld = withhold(&mut region.routines);
            rescued = Some(rescued_calls::add(seen, withheld, &region, &mut calls));
        }
        region.add(&calls)?;
        Ok(Plan { region, calls, rescued })
    }
}
