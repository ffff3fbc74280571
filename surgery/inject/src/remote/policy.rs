//! What the uses of remote calls differ in.

use std::time::Duration;

use super::tail::Tail;
use crate::abi::Registers;
use crate::error::Result;
use crate::target::tracee::{Stop, Tracee};

/// The differences between the uses of the engine. The defaults are for a program that has not run an instruction: it
/// has no handlers, no restartable sequences and no other threads, and waits for as long as it takes.
pub trait Policy {
    /// Timeout for one call, and for the thread's stop after the last one.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the tails that the calls may be made from, as the thread goes on elsewhere after a signal.
    fn tails(&self) -> &[Tail] {
        &[]
    }

    /// Waits until the thread has stopped after [`Tracee::interrupt`].
    fn wait_for_interrupt(&self, tracee: &Tracee) -> Result<(Registers, Stop)> {
        tracee.wait_for_interrupt(None)
    }

    /// Prepares a thread that has just stopped, before its registers change.
    fn prepare(&self, _tracee: &mut Tracee, _program: &mut Registers) -> Result<()> {
        Ok(())
    }

    /// Returns whether the program must run for a while before the next call.
    fn must_run(&self) -> bool {
        false
    }

    /// Lets the program run for a while from `stop`, then requests the thread's next stop.
    fn run(&self, _tracee: &Tracee, _stop: Stop) -> Result<()> {
        Ok(())
    }

    /// Returns an error if `signal` is for the remote call itself, made by the instruction before `after_call`, and not
    /// for the program.
    fn refuse_signal(&self, _tracee: &Tracee, _signal: i32, _after_call: u64) -> Result<()> {
        Ok(())
    }

    /// Records descriptors that exist in the program for a moment, for a cleanup if this process dies before they are
    /// closed.
    fn record(&self, _tracee: &mut Tracee, _scratch: u64, _descriptors: [u64; 2]) -> Result<()> {
        Ok(())
    }
}
