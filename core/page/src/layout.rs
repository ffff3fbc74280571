//! The page's memory layout. `core/image/vdso/page.h` describes what each field means.

use std::mem::{offset_of, size_of};

pub use crate::clock::BASES;
use crate::clock::ClockSet;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Size of a page in a process, in bytes.
pub const PAGE_SIZE: usize = 4096;
/// The first eight bytes of every page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fastpage");
/// Version of this layout. A page of another version is refused when it is mapped.
pub const ABI: u32 = 1;
/// [`Header::flags`]: the per-CPU segment's limit was verified to hold the CPU and node number (x86-64).
pub const FLAG_CPU_SEGMENT: u32 = 1;
/// [`Header::flags`]: the page's readers see one CPU only, the header's. For a host whose guest has one CPU.
pub const FLAG_ONE_CPU: u32 = 2;
/// [`Header::flags`]: the CPUs' counters differ by the [`OffsetsCell`] (x86). The clocks of anchors are in
/// [`AnchorCell::by_cpu`].
pub const FLAG_OFFSETS: u32 = 4;
/// Number of CPUs that can have an offset.
pub const OFFSETS: usize = 512;
/// [`OffsetsCell::high`]: the CPU has no offset.
pub const NO_OFFSET: i8 = i8::MAX;
/// `FP_FLOOR_LIMIT_NS`: a floor this far above the kernel's time is ignored; `core/image/vdso/page.h` says why.
pub const FLOOR_LIMIT_NS: u32 = 1 << 29;
/// Number of withdrawals in a page's history.
pub const HISTORY: usize = 8;
/// [`StatsCell::watch_flags`]: the publisher may use a counter whose rate is not stated to be
/// constant (`--trust-counter`).
pub const WATCH_ALLOWS_NON_INVARIANT: u32 = 1;
/// [`WithdrawalCell::ahead_ns`]: no reader was served, or the value could not be measured.
pub const AHEAD_UNKNOWN: i64 = i64::MIN;

/// The time of one clock at an anchor's base: `struct fp_base`.
#[repr(C)]
#[derive(Default)]
pub struct BaseCell {
    /// Whole seconds.
    pub sec: AtomicU64,
    /// Nanoseconds within the second, shifted left by the anchor's `shift`.
    pub nsec_shifted: AtomicU64,
}

/// One copy of an anchor: `struct fp_anchor`.
#[repr(C)]
#[derive(Default)]
pub struct AnchorCell {
    /// Guards both copies; only that of `copy[0]` is used.
    pub seq: AtomicU32,
    /// A bit per clock id that this anchor answers; 0: withdrawn.
    pub clocks: AtomicU32,
    /// The counter at which the anchor's bases hold.
    pub base_cycles: AtomicU64,
    /// Nanoseconds per count, shifted left by `shift`.
    pub mult: AtomicU32,
    /// Bits of fraction in `mult` and `nsec_shifted`.
    pub shift: AtomicU32,
    /// Counts after `base_cycles` beyond which the anchor answers nothing.
    pub cap_cycles: AtomicU32,
    /// A bit per clock id that this anchor answers or has answered: its time at the cap is a floor for the kernel's
    /// answers.
    pub floors: AtomicU32,
    /// The time of each clock at `base_cycles`.
    pub base: [BaseCell; BASES],
    /// In place of `clocks` on a page with [`FLAG_OFFSETS`].
    pub by_cpu: AtomicU32,
    /// What `utc_error_ns` grows by per count, shifted left by `shift`.
    pub utc_error_mult: AtomicU32,
    /// Bound on the distance of REALTIME from UTC at `base_cycles`, in nanoseconds; 0: unknown.
    pub utc_error_ns: AtomicU64,
    /// Zero. Fills two cache lines, so that a latch's copies never share one.
    pub reserved2: [AtomicU32; 4],
}

impl AnchorCell {
    /// Returns the clocks that this anchor answers, to readers of either kind.
    pub fn answered(&self) -> ClockSet {
        ClockSet(self.clocks.load(Ordering::Relaxed) | self.by_cpu.load(Ordering::Relaxed))
    }
}

/// The newest anchor and the one before it: `struct fp_latch`.
#[repr(C)]
#[derive(Default)]
pub struct Latch {
    /// `copy[0]` is the newest anchor, `copy[1]` the one before it.
    pub copy: [AnchorCell; 2],
}

/// Identification of the page and constants of its lifetime: `struct fp_header`.
#[repr(C)]
#[derive(Default)]
pub struct Header {
    /// [`MAGIC`]. Stored last, when everything else is in place.
    pub magic: AtomicU64,
    /// [`ABI`].
    pub abi: AtomicU32,
    /// Size of [`Page`] in bytes.
    pub size: AtomicU32,
    /// `clock_getres` of the clocks with an anchor, in nanoseconds; 0: readers fall back to the kernel.
    pub hres_res_ns: AtomicU32,
    /// `clock_getres` of the COARSE clocks, in nanoseconds; 0: readers fall back to the kernel.
    pub coarse_res_ns: AtomicU32,
    /// [`FLAG_CPU_SEGMENT`], [`FLAG_ONE_CPU`], [`FLAG_OFFSETS`].
    pub flags: AtomicU32,
    /// The CPU's number, with [`FLAG_ONE_CPU`].
    pub cpu: AtomicU32,
    /// Its node's number, with [`FLAG_ONE_CPU`].
    pub node: AtomicU32,
    /// The clocks that the page is kept for, for the next publisher; 0: unknown.
    pub clocks: AtomicU32,
    /// The daemon that keeps the page, for its next instance; 0: none.
    pub keeper: AtomicU64,
    /// Zero.
    pub reserved: [AtomicU32; 20],
}

/// Statistics for `status` and `probe`; no reader on the hot path uses them: `struct fp_stats`.
#[repr(C)]
#[derive(Default)]
pub struct StatsCell {
    /// Anchors published since the page was made.
    pub refreshes: AtomicU64,
    /// Last error against the kernel's clock before a refresh, in nanoseconds, as two's complement.
    pub residual_ns: AtomicU64,
    /// The publisher's process id as it sees itself.
    pub publisher_pid: AtomicU32,
    /// Reason why the anchors were withdrawn; 0: they are in force.
    pub withdrawn_reason: AtomicU32,
    /// Number of withdrawals since the page was made. The last is `history[(withdrawals - 1) % HISTORY]`.
    pub withdrawals: AtomicU64,
    /// Comparisons of the CPUs' counters since the publisher started.
    pub warp_tests: AtomicU32,
    /// [`WATCH_ALLOWS_NON_INVARIANT`] or 0.
    pub watch_flags: AtomicU32,
    /// Upper bound of the distance of any two CPUs' counters in the last comparison; 0: there was none.
    pub warp_within_cycles: AtomicU64,
    /// The last withdrawals.
    pub history: [WithdrawalCell; HISTORY],
    /// Zero.
    pub reserved: [AtomicU32; 4],
}

/// One withdrawal: `struct fp_withdrawal`.
#[repr(C)]
#[derive(Default)]
pub struct WithdrawalCell {
    /// The kernel's CLOCK_BOOTTIME in the publisher's time namespace, in nanoseconds.
    pub boottime_ns: AtomicU64,
    /// How far the anchor was ahead of the kernel's MONOTONIC, in nanoseconds, as two's complement; or
    /// [`AHEAD_UNKNOWN`].
    pub ahead_ns: AtomicU64,
    /// The reason; 0: this entry is being written.
    pub reason: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// How far the counter of each CPU is ahead, in counts, as a signed number of 40 bits: `struct fp_offsets`.
#[repr(C)]
pub struct OffsetsCell {
    /// The lower 32 bits.
    pub low: [std::sync::atomic::AtomicU32; OFFSETS],
    /// The upper 8 bits, or [`NO_OFFSET`].
    pub high: [std::sync::atomic::AtomicI8; OFFSETS],
}

impl Default for OffsetsCell {
    fn default() -> OffsetsCell {
        OffsetsCell {
            low: [const { std::sync::atomic::AtomicU32::new(0) }; OFFSETS],
            high: [const { std::sync::atomic::AtomicI8::new(0) }; OFFSETS],
        }
    }
}

impl OffsetsCell {
    /// Returns how far the counter of a CPU is ahead, in counts; `None`: the CPU has no offset.
    pub fn get(&self, cpu: usize) -> Option<i64> {
        let high = self.high.get(cpu)?.load(std::sync::atomic::Ordering::Relaxed);
        let low = self.low[cpu].load(std::sync::atomic::Ordering::Relaxed);
        (high != NO_OFFSET).then_some((i64::from(high) << 32) + i64::from(low))
    }

    /// Returns whether an offset fits the table.
    pub fn can_hold(offset: i64) -> bool {
        (-(128 << 32)..i64::from(NO_OFFSET) << 32).contains(&offset)
    }
}

/// The whole page: `struct fp_page`. It takes the first bytes of [`PAGE_SIZE`]; the rest is zero.
#[repr(C)]
#[derive(Default)]
pub struct Page {
    /// Checked when the page is mapped.
    pub header: Header,
    /// REALTIME, MONOTONIC, BOOTTIME, TAI: one NTP-disciplined rate.
    pub hres: Latch,
    /// MONOTONIC_RAW.
    pub raw: Latch,
    /// Statistics.
    pub stats: StatsCell,
    /// With [`FLAG_OFFSETS`]. The model checker's atomics are too many for it.
    #[cfg(not(loom))]
    pub offsets: OffsetsCell,
}

impl Page {
    /// Returns a page as the kernel allocates it: all zero, so no reader answers from it.
    pub fn zeroed() -> Page {
        Page::default()
    }
}

// Loom's atomics carry bookkeeping, so the layout only holds for the real ones.
#[cfg(not(loom))]
const _: () = {
    const CACHE_LINE: usize = 64;
    assert!(size_of::<Page>() <= PAGE_SIZE);
    assert!(offset_of!(Page, offsets) % CACHE_LINE == 0);
    assert!(size_of::<BaseCell>() == 16);
    assert!(size_of::<AnchorCell>() == 2 * CACHE_LINE);
    assert!(size_of::<Latch>() == 4 * CACHE_LINE);
    assert!(size_of::<Header>() == 2 * CACHE_LINE);
    assert!(size_of::<StatsCell>() == 4 * CACHE_LINE);
    assert!(offset_of!(Page, hres) % CACHE_LINE == 0);
    assert!(offset_of!(Page, raw) % CACHE_LINE == 0);
    assert!(offset_of!(Page, stats) % CACHE_LINE == 0);
    // A read of REALTIME or MONOTONIC (base[0], base[1]) touches one cache line.
    assert!(offset_of!(AnchorCell, base) + 2 * size_of::<BaseCell>() <= CACHE_LINE);
};

/// The place of one field in a struct of `core/image/vdso/page.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The struct's tag in C, such as `fp_anchor`.
    pub struct_name: &'static str,
    /// The field's name, the same on both sides.
    pub field: &'static str,
    /// Offset from the struct's start, in bytes.
    pub offset: usize,
    /// Size of the field, in bytes.
    pub size: usize,
}

/// The size of one struct of `core/image/vdso/page.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struct {
    /// The struct's tag in C, such as `fp_anchor`.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
}

pub(crate) fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! fields_of {
    ($out:ident, $rust:ident as $c:literal: $($field:ident),+) => {
        $($out.push(Field {
            struct_name: $c,
            field: stringify!($field),
            offset: offset_of!($rust, $field),
            size: $crate::layout::size_of_field(|s: &$rust| &s.$field),
        });)+
    };
}

pub(crate) use fields_of;

/// Returns every field of every struct, for the image's build to assert in C.
pub fn fields() -> Vec<Field> {
    let mut out = Vec::new();
    fields_of!(out, BaseCell as "fp_base": sec, nsec_shifted);
    fields_of!(out, AnchorCell as "fp_anchor": seq, clocks, base_cycles, mult, shift, cap_cycles, floors, base, by_cpu,
        utc_error_mult, utc_error_ns, reserved2);
    fields_of!(out, Latch as "fp_latch": copy);
    fields_of!(out, Header as "fp_header": magic, abi, size, hres_res_ns, coarse_res_ns, flags, cpu, node, clocks, keeper,
        reserved);
    fields_of!(out, WithdrawalCell as "fp_withdrawal": boottime_ns, ahead_ns, reason, reserved);
    fields_of!(out, StatsCell as "fp_stats": refreshes, residual_ns, publisher_pid, withdrawn_reason, withdrawals, warp_tests,
        watch_flags, warp_within_cycles, history, reserved);
    fields_of!(out, Page as "fp_page": header, hres, raw, stats);
    #[cfg(not(loom))]
    fields_of!(out, Page as "fp_page": offsets);
    fields_of!(out, OffsetsCell as "fp_offsets": low, high);
    out
}

impl Struct {
    pub(crate) const fn sized<S>(name: &'static str) -> Struct {
        let size = size_of::<S>();
        Struct { name, size }
    }
}

/// Returns the size of every struct, for the image's build to assert in C.
pub fn structs() -> [Struct; 8] {
    [
        Struct::sized::<BaseCell>("fp_base"),
        Struct::sized::<AnchorCell>("fp_anchor"),
        Struct::sized::<Latch>("fp_latch"),
        Struct::sized::<Header>("fp_header"),
        Struct::sized::<WithdrawalCell>("fp_withdrawal"),
        Struct::sized::<StatsCell>("fp_stats"),
        Struct::sized::<Page>("fp_page"),
        Struct::sized::<OffsetsCell>("fp_offsets"),
    ]
}
