//! Conversion of the counter to time: the values of the kernel's clocks at a value of the CPU's counter, and their
//! rates.
//!
//! Pure arithmetic over samples, without clock reads or system calls. A publisher regularly takes a [`Sample`], gives
//! it to a [`Discipline`], and carries out the [`AnchorDecision`]:
//!
//! - [`bracket`]: one clock read between two reads of the counter, and the tightest of several;
//! - `recent`: the last few values of a sequence, in place: nothing here allocates;
//! - `widths`: how wide an uninterrupted bracket is;
//! - `line`: the straight line through such points;
//! - `track`: the recent points of one clock, their noise, whether its rate has changed, and whether the counter is
//!   believable;
//! - `offset`: the constant between two clocks that tick at one rate, and its steps;
//! - [`ntp`]: the kernel's clock adjustments, from adjtimex(2);
//! - `steer`: from the anchor in force to the next one, without time going back;
//! - [`discipline`]: all of it for one host.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod bracket;
mod clocks;
mod config;
pub mod discipline;
mod in_force;
mod kernel;
mod line;
pub mod ntp;
mod offset;
mod offsets;
mod probation;
pub mod recent;
mod steer;
mod track;
mod utc;
mod widths;

pub use bracket::{Bracket, Sample, tightest};
pub use config::Config;
pub use discipline::{AnchorDecision, Discipline};
pub use fastpath_page::Reason;
pub use ntp::{Leap, Ntp};
pub use steer::{VISIBLE_NS, is_behind};
