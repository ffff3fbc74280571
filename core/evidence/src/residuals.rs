//! How well the counter predicted the kernel's clock, from a publisher's page.

use std::io;

use fastpath_page::{Page, Reader};
use serde::{Deserialize, Serialize};

use crate::page_copy::PageCopy;

/// Statistics of a publisher about the counter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Residuals {
    /// Number of anchors published.
    pub refreshes: u64,
    /// How far the last anchor was ahead of the kernel's MONOTONIC when it was replaced, in nanoseconds.
    pub last_ns: i64,
    /// Reason why the anchors are withdrawn at present; null if they are not.
    pub withdrawn: Option<String>,
    /// Number of withdrawals since the page was made.
    pub withdrawals: u64,
    /// The last withdrawals, oldest first.
    pub history: Vec<Withdrawal>,
    /// Number of comparisons of the CPUs' counters since the publisher started.
    pub warp_tests: u64,
    /// Upper bound of the distance of any two CPUs' counters in the last comparison, in counts: it could have missed a
    /// smaller warp.
    pub warp_within_cycles: Option<u64>,
    /// Whether `--trust-counter` was given: the CPU does not state that the counter has one rate.
    #[serde(rename = "is_vouched_for")]
    pub allows_non_invariant: bool,
}

/// A withdrawal of anchors from a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Withdrawal {
    /// Time on the kernel's CLOCK_BOOTTIME, in nanoseconds.
    pub boottime_ns: u64,
    /// The reason.
    pub reason: String,
    /// How far the anchor was ahead of the kernel's MONOTONIC then, in nanoseconds, where known.
    pub ahead_ns: Option<i64>,
}

impl Residuals {
    /// Returns the statistics of a page: that of a process that is served (see [`Residuals::of_process`]), or a host's
    /// own.
    pub fn of_page(page: &Page) -> Residuals {
        let reader = Reader::new(page);
        let (stats, watch) = (reader.stats(), reader.watch());
        Residuals {
            refreshes: stats.refreshes,
            last_ns: stats.residual_ns,
            withdrawn: stats.withdrawn_reason.map(|reason| reason.to_string()),
            withdrawals: reader.withdrawals(),
            history: reader
                .history()
                .map(|withdrawal| Withdrawal::from(&withdrawal))
                .collect(),
            warp_tests: watch.warp_tests.into(),
            warp_within_cycles: watch.warp_within_cycles,
            allows_non_invariant: watch.allows_non_invariant,
        }
    }

    /// Returns the statistics of the page of a process that `fastpath run` serves; `Ok(None)` if it has no page.
    ///
    /// # Errors
    /// Fails if /proc/PID/maps or /proc/PID/mem cannot be read, which need the right to trace the process.
    pub fn of_process(pid: u32) -> io::Result<Option<Residuals>> {
        Ok(PageCopy::of_process(pid)?.map(|page| Residuals::of_page(&page)))
    }
}

impl From<&fastpath_page::Withdrawal> for Withdrawal {
    fn from(withdrawal: &fastpath_page::Withdrawal) -> Withdrawal {
        Withdrawal {
            boottime_ns: withdrawal.boottime_ns,
            reason: withdrawal.reason.to_string(),
            ahead_ns: withdrawal.ahead_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_page::{Init, Reason, Watch, Writer};

    #[test]
    fn a_page_tells_its_publishers_experience() {
        let page = Page::zeroed();
        let writer = Writer::new(&page);
        writer.init(&Init::default());
        writer.withdraw(Reason::Warp, || 0);
        writer.note_withdrawal(&fastpath_page::Withdrawal {
            boottime_ns: 7,
            reason: Reason::Warp,
            ahead_ns: Some(-90),
        });
        writer.set_watch(&Watch {
            warp_tests: 2,
            warp_within_cycles: None,
            allows_non_invariant: true,
        });
        let residuals = Residuals::of_page(&page);
        assert_eq!(
            residuals.withdrawn.as_deref(),
            Some("the counters of two CPUs disagree")
        );
        assert_eq!((residuals.withdrawals, residuals.warp_tests), (1, 2));
        assert_eq!(residuals.history[0].ahead_ns, Some(-90));
        assert!(residuals.allows_non_invariant);
    }

    #[test]
    fn a_process_without_a_page_has_no_experience() {
        assert_eq!(Residuals::of_process(std::process::id()).expect("our own maps"), None);
        assert!(Residuals::of_process(0).is_err());
    }
}
