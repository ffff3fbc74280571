//! Keeps pages up to date: samples this host's clocks, gives the samples to the discipline, publishes, and implements
//! the failure rules.

mod keeper;
mod ntp;
mod patrol;
mod publisher;
mod settings;
mod shared_page;
mod steps;

pub use fastpath_host::{News, counter, evidence};
pub use publisher::{Handle, Member, Offsets, Publisher, REASON_LET_GO};
pub use shared_page::{NotAPage, SharedPage};
