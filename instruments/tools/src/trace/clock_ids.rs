//! Which clock a process reads at a moment within a vDSO, by its registers.

use crate::trace::call::CallSample;
use crate::trace::process::ProgramImage;
use crate::trace::symbols;
use fastpath_code::clock_id::{Places, clock_id_places};
use fastpath_measure::Clock;
use object::{Object, ObjectSegment, ObjectSymbol};
use std::collections::HashMap;

/// The general registers, as instructions encode them: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
pub(crate) type GeneralRegisters = [u64; 16];

/// Where the vDSOs of a process have the clock's id, by the addresses of their instructions.
pub(crate) struct ClockIds(HashMap<u64, Places>);

impl ClockIds {
    /// Reads the vDSOs of a process: the kernel's as it is there, which `attach` changes, and fastpath's.
    pub(crate) fn read(pid: u32, image: &ProgramImage) -> ClockIds {
        let mappings = image.maps.iter().filter(|mapping| symbols::is_vdso(&mapping.path));
        let code: Vec<(u64, Vec<u8>)> = mappings
            .filter_map(|mapping| Some((mapping.range.start, symbols::memory_of(pid, &mapping.range)?)))
            .collect();
        let entries: Vec<(u64, Places)> = code.iter().flat_map(|(start, bytes)| entries(*start, bytes)).collect();
        ClockIds(clock_id_places(&entries, |address| {
            let (start, bytes) = code.iter().find(|(start, bytes)| {
                let offset = address.checked_sub(*start);
                offset.is_some_and(|offset| offset < bytes.len() as u64)
            })?;
            bytes.get((address - start) as usize..)
        }))
    }

    /// Returns the clock that is read in a sample with these registers, if it still shows the clock's id.
    pub(crate) fn clock(&self, sample: &CallSample, registers: &GeneralRegisters) -> Option<Clock> {
        self.clock_at(sample.site.ip, sample, 0, registers).or_else(|| {
            // In a function of the vDSO's own that has pushed nothing: where it returns to.
            let caller = u64::from_ne_bytes(*sample.stack.first_chunk()?);
            self.clock_at(caller, sample, size_of::<u64>(), registers)
        })
    }

    /// Returns the clock at an address, where the stack pointer is that of the sample, plus `popped` bytes.
    fn clock_at(
        &self,
        address: u64,
        sample: &CallSample,
        popped: usize,
        registers: &GeneralRegisters,
    ) -> Option<Clock> {
        let places = self.0.get(&address)?;
        let on_stack = || {
            let at = popped.checked_add(usize::try_from(places.slot()?).ok()?)?;
            Clock::from_id(i32::from_ne_bytes(*sample.stack.get(at..)?.first_chunk()?))
        };
        match places.is_realtime() {
            true => Some(Clock::REALTIME),
            false => {
                let mut values = places.registers().map(|place| registers[place] as i32);
                values.find_map(Clock::from_id).or_else(on_stack)
            }
        }
    }
}

/// Returns the functions of a vDSO that is mapped at `start`, and where each has the clock's id when it is called.
fn entries(start: u64, bytes: &[u8]) -> Vec<(u64, Places)> {
    let Ok(file) = object::File::parse(bytes) else {
        return Vec::new();
    };
    let base = file.segments().next().map_or(0, |segment| segment.address());
    let places = |name: &str| match name.trim_start_matches("__vdso_") {
        "clock_gettime" | "clock_getres" => Some(Places::ARGUMENT),
        "gettimeofday" | "time" => Some(Places::REALTIME),
        _ => None,
    };
    let entry = |address: u64| start.wrapping_add(address).wrapping_sub(base);
    file.dynamic_symbols()
        .filter_map(|symbol| Some((entry(symbol.address()), places(symbol.name().ok()?)?)))
        .collect()
}
