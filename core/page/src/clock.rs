//! The clocks of Linux: the table from which their sets, names and places on a page follow. `core/image/vdso/page.h` has
//! the served ones for C, and the build asserts that the two agree.

/// How a clock id is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// From the counter: a vDSO can answer it, and so can fastpath.
    Counter,
    /// With the time of the last tick: a vDSO answers it without the counter.
    Coarse,
    /// By a system call on every host: a CPU-time clock or an alarm clock.
    KernelOnly,
}

/// One clock id that Linux knows by a fixed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub(crate) id: i32,
    pub(crate) name: &'static str,
    pub(crate) kind: ClockKind,
}

/// A latch of a page: its clocks tick at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockLatch {
    /// The NTP-disciplined rate.
    Hres,
    /// The rate of MONOTONIC_RAW.
    Raw,
}

/// A clock that a page can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedClock {
    /// The number that `clock_gettime` takes.
    pub id: u32,
    /// The name, without `CLOCK_`.
    pub name: &'static str,
    /// The latch that holds it.
    pub latch: ClockLatch,
    /// Index in an anchor's bases.
    pub base: usize,
}

macro_rules! clocks {
    ($($name:ident = $id:literal, $kind:ident $(in $latch:ident[$base:literal])?;)*) => {
        impl Clock {
            $(
                #[allow(missing_docs)]
                pub const $name: Clock = Clock { id: $id, name: stringify!($name), kind: ClockKind::$kind };
            )*
            /// Every clock, in the order of the ids.
            pub const ALL: &'static [Clock] = &[$(Clock::$name),*];
            /// The clocks that fastpath can answer from the counter.
            pub const SERVED: &'static [Clock] = &[$($(Clock::$name.served_in(ClockLatch::$latch),)?)*];
        }

        /// The clocks that a page can answer, in the order of the ids.
        pub const SERVED: &[ServedClock] = &[$($(
            ServedClock { id: $id, name: stringify!($name), latch: ClockLatch::$latch, base: $base },
        )?)*];

        impl ClockSet {
            $($(
                #[doc = concat!("CLOCK_", stringify!($name), ": base ", $base)]
                pub const $name: ClockSet = ClockSet(1 << $id);
            )?)*
        }
    };
}

// include/uapi/linux/time.h; 10 was CLOCK_SGI_CYCLE, which was removed.
clocks! {
    REALTIME = 0, Counter in Hres[0];
    MONOTONIC = 1, Counter in Hres[1];
    PROCESS_CPUTIME_ID = 2, KernelOnly;
    THREAD_CPUTIME_ID = 3, KernelOnly;
    MONOTONIC_RAW = 4, Counter in Raw[0];
    REALTIME_COARSE = 5, Coarse;
    MONOTONIC_COARSE = 6, Coarse;
    BOOTTIME = 7, Counter in Hres[2];
    REALTIME_ALARM = 8, KernelOnly;
    BOOTTIME_ALARM = 9, KernelOnly;
    TAI = 11, Counter in Hres[3];
}

/// Clocks in one anchor: those of the hres latch; the raw latch uses the first base only.
pub const BASES: usize = ClockSet::HRES.0.count_ones() as usize;

impl Clock {
    const fn served_in(self, _: ClockLatch) -> Clock {
        self
    }
}

/// Returns the index of a clock id in [`crate::Anchor::base`].
pub const fn base_index(id: u32) -> Option<usize> {
    let mut at = 0;
    while at < SERVED.len() {
        if SERVED[at].id == id {
            return Some(SERVED[at].base);
        }
        at += 1;
    }
    None
}

/// A set of clocks, a bit per clock id, as `fp_anchor.clocks` holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClockSet(pub u32);

impl ClockSet {
    /// No clock at all.
    pub const NONE: ClockSet = ClockSet(0);
    /// The clocks of the `hres` latch: they tick at one NTP-disciplined rate.
    pub const HRES: ClockSet = ClockSet::of_latch(ClockLatch::Hres);
    /// Every clock that a page can answer.
    pub const ALL: ClockSet = Self::HRES.union(ClockSet::of_latch(ClockLatch::Raw));

    const fn of_latch(latch: ClockLatch) -> ClockSet {
        let (mut set, mut at) = (ClockSet::NONE, 0);
        while at < SERVED.len() {
            if SERVED[at].latch as u8 == latch as u8 {
                set.0 |= 1 << SERVED[at].id;
            }
            at += 1;
        }
        set
    }

    /// Returns the set of one clock id, or the empty set for an id that no anchor can hold.
    pub const fn of_id(id: u32) -> ClockSet {
        if id < 32 {
            ClockSet(1 << id).intersection(Self::ALL)
        } else {
            Self::NONE
        }
    }

    /// Returns the clocks in either set.
    pub const fn union(self, other: ClockSet) -> ClockSet {
        ClockSet(self.0 | other.0)
    }

    /// Returns the clocks in both sets.
    pub const fn intersection(self, other: ClockSet) -> ClockSet {
        ClockSet(self.0 & other.0)
    }

    /// Returns the clocks of this set that are not in the other.
    pub const fn difference(self, other: ClockSet) -> ClockSet {
        ClockSet(self.0 & !other.0)
    }

    /// Returns whether every clock of `other` is in this set.
    pub const fn contains(self, other: ClockSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set holds no clock.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the clock ids in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..32).filter(move |id| self.0 >> id & 1 == 1)
    }
}

impl std::ops::BitOr for ClockSet {
    type Output = ClockSet;

    fn bitor(self, other: ClockSet) -> ClockSet {
        self.union(other)
    }
}
