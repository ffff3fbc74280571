//! Measures clocks and never changes anything: the path that a call takes and its cost ([`Probe`]), the paths side by
//! side ([`mod@bench`]), how accurate fastpath is ([`accuracy`], [`monotonicity`]).
//!
//! All results are returned as serializable data; nothing here prints.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod accuracy;
mod auto;
#[cfg(feature = "bench")]
pub mod bench;
pub mod child;
pub mod cost;
mod cost_samples;
pub mod counter;
pub mod functions;
pub mod guard;
mod histogram;
pub mod host;
mod monotonicity;
pub mod path;
pub mod probe;
mod rate;
mod readable;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
pub mod stats;
pub mod timer;
pub mod vdso;
pub mod verdict;
pub mod vsyscall;

pub use accuracy::{Accuracy, ClockAccuracy, Reference, accuracy};
pub use auto::{Assume, PresentPath, measure_for_auto};
pub use cost_samples::{CALLS_PER_SAMPLE, cost_samples};
pub use fastpath_page::clocks::{self, Clock, ClockKind, Clocks, NotServed, UnknownClock};
pub use functions::{ClockFn, Functions, GetcpuFn, GettimeofdayFn, TimeFn, VdsoCall};
pub use histogram::{ErrorBucket, ErrorDistribution, Histogram};
pub use host::{MeasuredHost, TimensOffset};
pub use monotonicity::{ClockMonotonicity, Limit, Monotonicity, Steps, monotonicity};
pub use path::Path;
pub use probe::{ClockReport, FunctionReport, MeasuredCall, Probe};
pub use rate::{ClockRate, Comparison, is_synchronized, off_by, wrong_rate};
pub use readable::{CounterUse, forbid_counter_again, make_clocks_readable};
pub use stats::{CostSummary, Spread};
pub use vdso::VdsoFacts;
pub use verdict::CallVerdict;
pub use vsyscall::{Entry, Mode, Vsyscall};
