//! Structs and pointers from C.

use crate::error::Error;

/// A struct whose first member is its own size.
///
/// # Safety
/// `#[repr(C)]`, begins with a `u32` that holds its size, and is made of integers, floats and pointers only.
pub(crate) unsafe trait Sized32: Copy {}

/// Copies a caller's struct.
///
/// # Safety
/// `pointer` is NULL or points to a struct whose first four bytes are its size.
pub(crate) unsafe fn take<T: Sized32>(pointer: *const T) -> Result<T, Error> {
    // SAFETY: the caller guarantees what `check` requires, and `check` verified the size.
    unsafe {
        check(pointer)?;
        Ok(pointer.read())
    }
}

/// Stores a result in a caller's struct; its size does not change.
///
/// # Safety
/// As for [`take`], and the struct may be written.
pub(crate) unsafe fn give<T: Sized32>(pointer: *mut T, value: T) -> Result<(), Error> {
    // SAFETY: the caller guarantees what `check` requires, and `check` verified the size.
    unsafe {
        check(pointer)?;
        pointer.write(value);
    }
    Ok(())
}

unsafe fn check<T: Sized32>(pointer: *const T) -> Result<(), Error> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Error::INVALID);
    }
    // SAFETY: the caller guarantees that the size is readable.
    let size = unsafe { pointer.cast::<u32>().read() };
    if size as usize == size_of::<T>() {
        Ok(())
    } else {
        Err(Error::SIZE)
    }
}

/// Returns the size of a struct, for its first member.
pub(crate) const fn size_of_32<T>() -> u32 {
    size_of::<T>() as u32
}

/// Copies as many values as there is room for, and returns how many there are.
///
/// # Safety
/// `out` is valid for writes of `capacity` values, or `capacity` is 0.
pub(crate) unsafe fn copy_out<T>(values: impl ExactSizeIterator<Item = T>, out: *mut T, capacity: usize) -> usize {
    let count = values.len();
    if !out.is_null() {
        for (index, value) in values.take(capacity).enumerate() {
            // SAFETY: `index` is below `capacity`, which the caller guarantees.
            unsafe { out.add(index).write(value) };
        }
    }
    count
}
