//! The settings of a discipline.

use fastpath_page::ClockSet;

/// Max age of anchors on a counter whose invariance is not established: it limits the time for which a wrong value is
/// read. A busy machine delays a publisher for some milliseconds, rarely for more than 20; with a lower limit, readers
/// would fall back to the kernel without need.
const WATCHED_CAP_NS: u64 = 40_000_000;

/// Settings of a discipline: the clocks to serve, and the intervals of samples and comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The clocks to serve.
    pub clocks: ClockSet,
    /// Time from the first sample to the second, in nanoseconds. Windows double from there.
    pub first_window_ns: u64,
    /// Time between samples once the rate is known, in nanoseconds.
    pub longest_window_ns: u64,
    /// Windows for which an anchor may be used. An error is worked off until the anchor's end, over so many windows, so
    /// this is 1 where refreshes only come when the anchor has ended.
    pub cap_windows: u64,
    /// Time between comparisons of the CPUs' counters, in nanoseconds: the longest time for which readers see an error
    /// of one CPU's counter.
    pub compare_every_ns: u64,
    /// Rest after a comparison, in multiples of the CPU time that it took: comparisons are rarer on hosts with many
    /// CPUs.
    pub compare_rests: u32,
}

impl Config {
    /// Returns the settings of a publisher that has no timer and refreshes when a reader found the anchor too old.
    /// Anchors live for one window, and windows stretch to 0.4 s: a machine that sleeps while its counter goes on takes
    /// readers ahead by so much, and the floor holds only for less than [`fastpath_page::layout::FLOOR_LIMIT_NS`].
    pub fn on_demand(clocks: ClockSet) -> Config {
        Config {
            clocks,
            // A reader is not served before the third sample, so the second comes soon. Where brackets are wide the rate
            // is not known by then, and the windows go on doubling.
            first_window_ns: 100_000,
            longest_window_ns: 400_000_000,
            cap_windows: 1,
            ..Config::default()
        }
    }

    /// Returns the same settings for a counter whose rate is not guaranteed (`--trust-counter`): anchors live for 40
    /// ms, a tenth of the usual, and the CPUs are compared twenty times as often. This costs the comparisons, ten times
    /// as many samples, and reads that fall back to the kernel where a busy machine delays the publisher for longer
    /// than that.
    pub fn watched(self) -> Config {
        let usual = Config::default();
        Config {
            longest_window_ns: self.longest_window_ns.min(WATCHED_CAP_NS / self.cap_windows.max(1)),
            compare_every_ns: usual.compare_every_ns / 20,
            compare_rests: usual.compare_rests / 20,
            ..self
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clocks: ClockSet::ALL,
            first_window_ns: 1_000_000,
            longest_window_ns: 100_000_000,
            // One or two late refreshes must not slow readers down.
            cap_windows: 4,
            compare_every_ns: 300_000_000,
            compare_rests: 2_000,
        }
    }
}
