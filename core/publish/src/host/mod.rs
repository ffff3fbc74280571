//! The publisher for hosts of guests: runtimes, sandboxes, emulators, VMMs.
//!
//! Such a host maps an image of [`mod@image`] and a page into its guest, and keeps the page fresh:
//!
//! - [`evidence`]: whether this host's counter can be believed;
//! - [`init`]: constants of a page's lifetime;
//! - [`Publisher`]: samples the host's clocks and publishes them on the page, in the guest's counts ([`Relation`]);
//! - [`Publisher::trapped`]: advice after a system call of the guest, so that no timer is needed;
//! - [`PublisherState`]: staleness, residual, drift, for a log.
//!
//! Except for [`evidence`], which starts threads and reads other processes, nothing here allocates, locks, waits or
//! keeps global state, and all of it can be used in a signal handler. `fastpath run` follows the same rules: the two
//! share [`Refresher`]. The C interface (`hosts/libfastpath`) is a thin layer over this crate.

pub mod init;
mod pages;
mod publisher;
mod refresher;
mod relation;
pub mod sample;
mod state;
mod trap;

pub use fastpath_clock::{Bracket, Config, Reason, Sample};
pub use fastpath_evidence::{self as evidence, counter};
pub use fastpath_image as image;
pub use fastpath_page::{ClockSet, Page};
pub use pages::Pages;
pub use publisher::{Busy, NotPublished, Publisher, PublisherConfig};
pub use refresher::{LEAD_NS, News, Occasion, Refreshed, Refresher};
pub use relation::{BadRelation, Relation};
pub use sample::{Source, ThisHost};
pub use state::PublisherState;
pub use trap::{Advice, Trap};
