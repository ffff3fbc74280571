//! Answers for guests beside the clocks: identities, random bytes.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr::NonNull;

use fastpath_page::answers::{Answers, DESCRIPTORS, Identity, Mapped, Memory, WORDS};
use fastpath_publish::host::image::Image;

use crate::error::{Error, answer};
use crate::image::isa_of;
use crate::plain::{Sized32, take};

/// `struct fastpath_answers`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CAnswers {
    /// Size of this struct.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The page, or the host's copy of it.
    pub page: *mut c_void,
    /// Stores a word in the guest; `None` if `page` is the guest's.
    pub store: Option<extern "C" fn(context: *mut c_void, offset: u32, word: u64) -> c_int>,
    /// Argument of `store`.
    pub context: *mut c_void,
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers and pointers.
unsafe impl Sized32 for CAnswers {}

/// `FASTPATH_ANSWERS_SIZE`
pub const ANSWERS_SIZE: usize = WORDS * 8;
/// `FASTPATH_ANSWERS_OFFSET`
pub const ANSWERS_OFFSET: i64 = fastpath_page::answers::ANSWERS_OFFSET;
/// `FASTPATH_RING_OFFSET`
pub const RING_OFFSET: i64 = fastpath_page::answers::RING_OFFSET;
/// `FASTPATH_ANSWERS_DESCRIPTORS`
pub const ANSWERS_DESCRIPTORS: u32 = DESCRIPTORS;
/// `FASTPATH_CREDENTIALS`
pub const CREDENTIALS: u32 = bits(&Identity::CREDENTIALS);

const fn bits(identities: &[Identity]) -> u32 {
    let (mut bits, mut index) = (0, 0);
    while index < identities.len() {
        bits |= 1 << identities[index] as u32;
        index += 1;
    }
    bits
}

/// A page of answers, here or behind a function of the host.
struct Stored {
    page: Mapped,
    of: CAnswers,
}

impl Memory for Stored {
    type Error = Error;

    fn load(&self, index: usize) -> u64 {
        self.page.load(index)
    }

    fn store(&mut self, index: usize, word: u64) -> Result<(), Error> {
        if let Some(store) = self.of.store
            && store(self.of.context, index as u32 * 8, word) != 0
        {
            return Err(Error::STORE);
        }
        let Ok(()) = self.page.store(index, word);
        Ok(())
    }
}

/// Takes the caller's answers.
///
/// # Safety
/// `answers` is NULL or a struct whose page is NULL or as many writable bytes as a page of answers has.
unsafe fn from_c(answers: *const CAnswers) -> Result<Answers<Stored>, Error> {
    // SAFETY: the caller guarantees that the struct begins with its size.
    let of = unsafe { take(answers)? };
    let page = NonNull::new(of.page.cast::<u8>()).filter(|page| page.addr().get() % 8 == 0);
    let page = page.filter(|_| of.reserved == 0).ok_or(Error::INVALID)?;
    // SAFETY: aligned; the caller guarantees that it is writable.
    let page = unsafe { Mapped::new(page) };
    Ok(Answers(Stored { page, of }))
}

/// Returns the image of an ISA for the guests of a host, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_image_for_hosts(isa: c_int) -> Option<&'static Image> {
    Image::for_hosts(isa_of(isa)?)
}

/// Makes an answer valid.
///
/// # Safety
/// `answers` is NULL or a struct as the header describes it. This holds for every function here that takes one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_set(answers: *const CAnswers, identity: c_int, value: u32) -> c_int {
    let set = || {
        let identity = usize::try_from(identity).ok();
        let identity = *identity
            .and_then(|index| Identity::ALL.get(index))
            .ok_or(Error::INVALID)?;
        // SAFETY: the caller guarantees what `of` requires.
        unsafe { from_c(answers)? }.set(identity, value).map(|()| 0)
    };
    answer(set())
}

/// Makes answers invalid.
///
/// # Safety
/// See [`fastpath_answers_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_invalidate(answers: *const CAnswers, identities: u32) -> c_int {
    let invalidate = || {
        if identities & !bits(&Identity::ALL) != 0 {
            return Err(Error::INVALID);
        }
        let mut list = Identity::ALL;
        let mut count = 0;
        for identity in Identity::ALL {
            if identities >> identity as u32 & 1 == 1 {
                list[count] = identity;
                count += 1;
            }
        }
        // SAFETY: the caller guarantees what `of` requires.
        unsafe { from_c(answers)? }.invalidate(&list[..count]).map(|()| 0)
    };
    answer(invalidate())
}

/// Lets random bytes be answered, or not.
///
/// # Safety
/// See [`fastpath_answers_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_set_random(answers: *const CAnswers, is_on: c_int) -> c_int {
    // SAFETY: the caller guarantees what `of` requires.
    let answers = unsafe { from_c(answers) };
    answer(answers.and_then(|mut answers| answers.set_random(is_on != 0).map(|()| 0)))
}

/// Marks a descriptor as open for reading on /dev/urandom.
///
/// # Safety
/// See [`fastpath_answers_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_mark_urandom(answers: *const CAnswers, descriptor: u32) -> c_int {
    // SAFETY: the caller guarantees what `of` requires.
    let answers = unsafe { from_c(answers) };
    answer(answers.and_then(|mut answers| answers.mark_urandom(descriptor, true).map(c_int::from)))
}

/// Takes the marks of descriptors.
///
/// # Safety
/// See [`fastpath_answers_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_unmark(answers: *const CAnswers, first: u32, last: u32) -> c_int {
    // SAFETY: the caller guarantees what `of` requires.
    let answers = unsafe { from_c(answers) };
    answer(answers.and_then(|mut answers| answers.unmark(first, last).map(|()| 0)))
}

/// Voids what the image knows about the guest's memory.
///
/// # Safety
/// See [`fastpath_answers_set`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answers_forget_memory(answers: *const CAnswers) -> c_int {
    // SAFETY: the caller guarantees what `of` requires.
    let answers = unsafe { from_c(answers) };
    answer(answers.and_then(|mut answers| answers.forget_memory().map(|()| 0)))
}

/// Answers a call of a guest in this process, without a system call.
///
/// # Safety
/// `function` is NULL or the address of `__fastpath_answer` in an image for hosts that is mapped here with its pages;
/// `arguments` has six words, and `result` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_answer(
    function: *const c_void,
    number: c_ulong,
    arguments: *const c_long,
    guest_sp: c_ulong,
    result: *mut c_long,
) -> c_int {
    type Function = unsafe extern "C" fn(c_ulong, *const c_long, c_ulong, *mut c_long) -> c_int;
    if function.is_null() || arguments.is_null() || result.is_null() {
        return Error::INVALID.0;
    }
    // SAFETY: the caller guarantees that it is the function, which has this type (core/image/vdso/hosts/answers.c).
    let function: Function = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller guarantees both pointers.
    unsafe { function(number, arguments, guest_sp, result) }
}
