//! Several remote calls, without a stop at each in a program that is stopped at its exec.
//!
//! A stop takes as long as two changes of the CPU's thread, which on a virtual machine is most of the time of a start. A
//! loop in the program makes the calls from a table in the scratch memory, until a result is not the expected one. Then
//! it sends the program a signal that is ignored unless a tracer is there, for which it stops. If the tracer has died,
//! the program continues by the return trampoline, and all calls of the table have been made.

use super::{AtExec, Policy, RemoteCalls};
use crate::abi::{Call, Registers};
use crate::error::{Error, Result};
use crate::plan::redirection::Change;
use crate::target::tracee::{CallResult, Stop, Until};
use nix::errno::Errno;

/// Offset of the table in the scratch memory: behind what a message needs (`descriptors.rs`).
const TABLE_AT: u64 = 512;
/// Most calls of one table.
pub const MOST_CALLS: usize = 20;
/// Marks the end of the table, in place of a number.
const END: u64 = u64::MAX;
/// Size of a row in bytes: number (a word of 32 bits) and [`Indirect`] (the next), arguments, expected result.
const ROW_BYTES: usize = 64;
/// Bytes of the scratch memory for all of it.
pub const SCRATCH_BYTES: u64 = TABLE_AT + (MOST_CALLS * ROW_BYTES) as u64 + 8;

/// Signals that end the calls: by default they are ignored (signal(7)).
const SIGNALS: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD];

/// The signal that ends the calls, and the process that gets it.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Number of the process in its own PID namespace. It has one thread.
    pub process: i32,
    pub signal: i32,
}

impl End {
    /// Returns the end for a process that blocks the signals `blocked`, a set as in /proc/PID/status. `None`: it blocks
    /// all that would do; a blocked one would stay pending if the tracer died.
    pub fn for_process(process: i32, blocked: u64) -> Option<End> {
        let is_free = |signal: &&i32| blocked >> (**signal - 1) & 1 == 0;
        let signal = *SIGNALS.iter().find(is_free)?;
        Some(End { process, signal })
    }
}

/// The loop in the program.
pub(super) struct Batch {
    end: End,
    /// Address of its code.
    code: u64,
    /// Program counter at the stop that ends it.
    stops_at: u64,
}

impl Batch {
    /// Returns the address of its code.
    pub(super) fn code(&self) -> u64 {
        self.code
    }
}

/// Which argument of a call is the address of its value, an int that an earlier call of the table stores there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indirect {
    None = 0,
    First = 1,
    Fifth = 2,
}

/// One call of a table.
#[derive(Debug, Clone, Copy)]
pub struct RemoteCall {
    /// Name for errors.
    pub what: &'static str,
    pub call: Call,
    pub arguments: [u64; 6],
    pub indirect: Indirect,
    pub expected: u64,
}

impl RemoteCall {
    /// Closes a descriptor.
    pub fn close(fd: u64) -> RemoteCall {
        RemoteCall {
            what: "close",
            call: Call::Close,
            arguments: [fd, 0, 0, 0, 0, 0],
            indirect: Indirect::None,
            expected: 0,
        }
    }

    /// Closes the descriptor that is stored at this address.
    pub fn close_at(address: u64) -> RemoteCall {
        RemoteCall {
            indirect: Indirect::First,
            ..RemoteCall::close(address)
        }
    }
}

/// A call of a table with another result than the expected one. Those before it have been made, those after it have
/// not.
#[derive(Debug)]
pub struct Unexpected {
    /// Index of the call.
    pub call: usize,
    /// Its result, if it has not failed.
    pub result: Option<u64>,
    pub error: Error,
}

impl Unexpected {
    fn new(index: usize, call: &RemoteCall, result: CallResult) -> Unexpected {
        let error = match result {
            Ok(result) => Error::Unsupported(format!("{} in the program returns {result}", call.what)),
            Err(errno) => Error::Remote { what: call.what, errno },
        };
        Unexpected {
            call: index,
            result: result.ok(),
            error,
        }
    }
}

impl From<Unexpected> for Error {
    fn from(unexpected: Unexpected) -> Error {
        unexpected.error
    }
}

impl RemoteCalls<'_> {
    /// Puts the loop beside the return trampoline, if there is room and the program's ABI has one.
    pub(super) fn prepare_batch(&mut self, end: End) -> Result<bool> {
        let Some(room) = self.abi.batch_bytes() else {
            return Ok(false);
        };
        let Some(code) = self.tail.room_below(room) else {
            return Ok(false);
        };
        let Some((bytes, stop)) = self
            .abi
            .batch(&self.program, code, self.after_call(), end.process, end.signal)
        else {
            return Ok(false);
        };
        self.tail.write_with(code, &bytes, &self.trampoline())?;
        self.is_ready = true;
        self.batch = Some(Batch {
            end,
            code,
            stops_at: code + stop as u64,
        });
        Ok(true)
    }

    /// Ends the use of the loop, whose place the caller needs. Returns the change that erases it and the return trampoline,
    /// which the caller must make next. Later calls are made one by one.
    pub fn end_batch(&mut self) -> Result<Option<Change>> {
        let after_loop = self.tail.code();
        let loop_at = self
            .batch
            .as_mut()
            .map(|batch| std::mem::replace(&mut batch.code, after_loop));
        let Some(at) = loop_at.filter(|at| *at != after_loop) else {
            return Ok(None);
        };
        // Before: if this process dies, the program must not continue in the loop.
        self.set_registers(self.program)?;
        (self.is_program, self.is_ready) = (true, false);
        Ok(Some(self.tail.erasure_from(at)))
    }

    /// Makes all these calls: by the loop, or one by one.
    pub fn call_all(&mut self, calls: &[RemoteCall]) -> std::result::Result<(), Unexpected> {
        self.call_all_with(&[], calls)
    }

    /// The same, after these bytes, at most [`TABLE_AT`], were written to the scratch memory.
    pub fn call_all_with(&mut self, bytes: &[u8], calls: &[RemoteCall]) -> std::result::Result<(), Unexpected> {
        let in_loop = self.batch.as_ref().is_some_and(|batch| batch.code != self.tail.code());
        let most = if in_loop { MOST_CALLS } else { 1 };
        if !in_loop && !bytes.is_empty() {
            self.tracee.write(self.scratch, bytes).map_err(before_all)?;
        }
        for (before, some) in (0..).step_by(most).zip(calls.chunks(most)) {
            let made = match (in_loop, some) {
                (false, [call]) => self.call_by_itself(call),
                _ => self.call_by_loop(if before == 0 { bytes } else { &[] }, some),
            };
            made.map_err(|other| Unexpected {
                call: before + other.call,
                ..other
            })?;
        }
        Ok(())
    }

    fn call_by_itself(&mut self, call: &RemoteCall) -> std::result::Result<(), Unexpected> {
        let made = self
            .direct(call)
            .and_then(|arguments| self.call(call.what, call.call, arguments));
        match made.map_err(before_all)? {
            result if result == call.expected => Ok(()),
            result => Err(Unexpected::new(0, call, Ok(result))),
        }
    }

    /// Returns the arguments of a call as they are passed.
    fn direct(&mut self, call: &RemoteCall) -> Result<[u64; 6]> {
        let mut arguments = call.arguments;
        let at = match call.indirect {
            Indirect::None => return Ok(arguments),
            Indirect::First => 0,
            Indirect::Fifth => 4,
        };
        arguments[at] = self.tracee.read_words(arguments[at], 1, 4)?[0];
        Ok(arguments)
    }

    fn call_by_loop(&mut self, bytes: &[u8], calls: &[RemoteCall]) -> std::result::Result<(), Unexpected> {
        let row = |call: &RemoteCall| {
            let mut row = [0; 8];
            row[0] = self.abi.number(call.call) | (call.indirect as u64) << 32;
            row[1..7].copy_from_slice(&call.arguments);
            row[7] = call.expected;
            row
        };
        let words = calls.iter().flat_map(row).chain([END]);
        let rows = words.flat_map(u64::to_le_bytes);
        let table = self.scratch + TABLE_AT;
        let mut written = bytes.to_vec();
        if !bytes.is_empty() {
            written.resize(TABLE_AT as usize, 0);
        }
        let at = table - written.len() as u64;
        written.extend(rows);
        let ended = self.tracee.write(at, &written).and_then(|()| self.run_batch(table));
        let end = table + (calls.len() * ROW_BYTES) as u64;
        if self.abi.is_batch_done(&ended.map_err(before_all)?, end) {
            return Ok(());
        }
        let words = calls.len() * ROW_BYTES / 8;
        let results = self.tracee.read_words(table, words, 8).map_err(before_all)?;
        let results = results.iter().step_by(ROW_BYTES / 8).zip(calls).enumerate();
        let mut others = results.filter(|(_, (result, call))| **result != call.expected);
        others.next().map_or(Ok(()), |(index, (result, call))| {
            let errno = (*result > u64::MAX - 4096).then(|| Errno::from_raw((*result as i64).wrapping_neg() as i32));
            Err(Unexpected::new(index, call, errno.map_or(Ok(*result), Err)))
        })
    }

    /// Runs the loop for the table at `table` to its end, and returns the registers there. A signal of another kind takes effect at once: a program at its exec has no handlers,
    /// so it matters to none where it is.
    fn run_batch(&mut self, table: u64) -> Result<Registers> {
        let Some(batch) = &self.batch else {
            return Err(Error::Gone);
        };
        let registers = self.abi.batch_registers(&self.program, batch.code, table);
        let (signal, stops_at) = (batch.end.signal, batch.stops_at);
        self.set_registers(registers)?;
        let mut deliver = 0;
        loop {
            self.tracee.resume(Until::Event, deliver)?;
            deliver = match self.tracee.event_with_registers(AtExec.timeout().is_none())? {
                Some((Stop::Signal(this), Some(at))) if this == signal && at.pc() == stops_at => return Ok(at),
                Some((Stop::Signal(other), _)) => other,
                Some((Stop::Exited | Stop::Exec, _)) => {
                    self.is_lost = true;
                    return Err(Error::Gone);
                }
                _ => 0,
            };
        }
    }
}

/// An error for which it is unknown whether a call was made.
fn before_all(error: Error) -> Unexpected {
    Unexpected {
        call: 0,
        result: None,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_that_ends_the_calls_is_one_that_the_program_does_not_block() {
        let blocked = |signals: &[i32]| signals.iter().fold(0, |set, signal| set | 1u64 << (signal - 1));
        let chosen = |signals: &[i32]| End::for_process(1, blocked(signals)).map(|end| end.signal);
        assert_eq!(chosen(&[]), Some(libc::SIGURG));
        assert_eq!(chosen(&[libc::SIGURG, libc::SIGTERM]), Some(libc::SIGWINCH));
        assert_eq!(chosen(&[libc::SIGURG, libc::SIGWINCH]), Some(libc::SIGCHLD));
        assert_eq!(chosen(&SIGNALS), None);
    }
}
