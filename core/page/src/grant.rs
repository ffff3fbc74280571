//! What a process gets from a publisher.

use std::os::fd::OwnedFd;

use crate::ClockSet;

/// A page for a process, and the mailbox that keeps it.
#[derive(Debug)]
pub struct Grant {
    /// The page, to be mapped read-only.
    pub page: OwnedFd,
    /// The mailbox, to be mapped shared by every process that reads the page: the page is published while a process
    /// maps its mailbox, or has this descriptor open.
    pub mailbox: OwnedFd,
    /// The clocks that the page answers.
    pub clocks: ClockSet,
}
