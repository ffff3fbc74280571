//! The images and their instances.

use std::ffi::{CStr, c_char, c_int, c_void};

use fastpath_publish::host::image::{
    CpuFeatures, Image, InstanceConfig, InstanceError, Isa, KernelFunctions, Placement,
};

use crate::error::{Error, answer};
use crate::plain::{Sized32, copy_out, take};

/// `FASTPATH_INSTANCE_NO_CLOCKS`
pub const INSTANCE_NO_CLOCKS: u32 = 1;
/// `FASTPATH_INSTANCE_CPU_FEATURES`
pub const INSTANCE_CPU_FEATURES: u32 = 2;
/// `FASTPATH_CPU_RDTSCP`
pub const CPU_RDTSCP: u32 = 1;
/// `FASTPATH_CPU_CNTVCTSS`
pub const CPU_CNTVCTSS: u32 = 2;
/// `FASTPATH_CPU_FENCE`
pub const CPU_FENCE: u32 = 4;

/// `struct fastpath_function`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Terminated by 0.
    pub name: [c_char; 32],
    /// Offset from the image's first byte.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// `struct fastpath_kernel_function`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelFunction {
    /// Name without prefix.
    pub name: *const c_char,
    /// Address in the guest.
    pub address: u64,
}

/// `struct fastpath_instance_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InstanceOptions {
    /// Size of this struct.
    pub size: u32,
    /// `FASTPATH_INSTANCE_*`
    pub flags: u32,
    /// Address of the image in the guest.
    pub address: u64,
    /// Offset of the page from `address`.
    pub page_offset: i64,
    /// `FASTPATH_CPU_*`
    pub cpu_features: u32,
    /// Number of `kernel_functions`.
    pub kernel_function_count: u32,
    /// The functions to which the image falls back.
    pub kernel_functions: *const KernelFunction,
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers and pointers.
unsafe impl Sized32 for InstanceOptions {}

pub(crate) fn isa_of(number: c_int) -> Option<Isa> {
    Isa::ALL.into_iter().find(|isa| number_of(*isa) == number)
}

/// `FASTPATH_X86_64` and so on.
pub const fn number_of(isa: Isa) -> c_int {
    isa as c_int + 1
}

/// Returns the ISA that this library was compiled for.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_host_isa() -> c_int {
    number_of(Isa::HOST)
}

/// Returns the name of an ISA, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_isa_name(isa: c_int) -> *const c_char {
    isa_of(isa).map_or(std::ptr::null(), |isa| isa.facts().name.as_ptr())
}

/// Returns the image of an ISA, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_image_of(isa: c_int) -> Option<&'static Image> {
    Image::for_isa(isa_of(isa)?)
}

/// Returns the ISA of an image.
///
/// # Safety
/// `image` came from [`fastpath_image_of`]. This holds for every function here that takes an image; each allows NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_isa(image: Option<&Image>) -> c_int {
    image.map_or(Error::INVALID.0, |image| number_of(image.isa()))
}

/// Returns the ELF file.
///
/// # Safety
/// `length` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_bytes(image: Option<&Image>, length: *mut usize) -> *const c_void {
    let bytes = image.map_or(&[][..], Image::bytes);
    if !length.is_null() {
        // SAFETY: the caller guarantees that it is valid for a write.
        unsafe { length.write(bytes.len()) };
    }
    if bytes.is_empty() {
        std::ptr::null()
    } else {
        bytes.as_ptr().cast()
    }
}

/// Returns the bytes to map.
///
/// # Safety
/// See [`fastpath_image_isa`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_size(image: Option<&Image>) -> usize {
    image.map_or(0, Image::size)
}

/// Stores the functions that the image exports, and returns how many there are.
///
/// # Safety
/// `functions` is valid for writes of `capacity` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_functions(
    image: Option<&Image>,
    functions: *mut Function,
    capacity: usize,
) -> usize {
    let all = image.map_or(&[][..], Image::functions).iter().map(|function| Function {
        name: c_name(function.name),
        offset: function.offset,
        size: function.size,
    });
    // SAFETY: the caller guarantees the capacity.
    unsafe { copy_out(all, functions, capacity) }
}

/// Returns a name, cut where it would not leave room for the terminating 0. A test asserts that none is cut.
fn c_name(name: &str) -> [c_char; 32] {
    let mut c_name = [0; 32];
    for (to, from) in c_name.iter_mut().zip(name.bytes().take(31)) {
        *to = from as c_char;
    }
    c_name
}

/// Returns the offset of an exported function, or 0.
///
/// # Safety
/// `name` is NULL or terminated by 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_symbol(image: Option<&Image>, name: *const c_char) -> u64 {
    // SAFETY: the caller guarantees that it is NULL or terminated.
    let name = unsafe { text(name) };
    image
        .zip(name)
        .and_then(|(image, name)| image.symbol(name))
        .unwrap_or(0)
}

/// Returns the offset of the function to which a signal handler with SA_SIGINFO returns, or 0.
///
/// # Safety
/// See [`fastpath_image_isa`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_rt_sigreturn(image: Option<&Image>) -> u64 {
    image.and_then(Image::rt_sigreturn).unwrap_or(0)
}

/// Returns the offset of the function to which any other signal handler returns, or 0.
///
/// # Safety
/// See [`fastpath_image_isa`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_sigreturn(image: Option<&Image>) -> u64 {
    image.and_then(Image::sigreturn).unwrap_or(0)
}

/// Stores the offsets behind the image's own system-call instructions, and returns how many there are.
///
/// # Safety
/// `offsets` is valid for writes of `capacity` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_image_system_calls(
    image: Option<&Image>,
    offsets: *mut u64,
    capacity: usize,
) -> usize {
    let all = image.map_or(&[][..], Image::system_calls).iter().copied();
    // SAFETY: the caller guarantees the capacity.
    unsafe { copy_out(all, offsets, capacity) }
}

/// Writes the image for one guest.
///
/// # Safety
/// `options` is NULL or a struct whose kernel functions and their names can be read; `buffer` is valid for writes of
/// `buffer_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_instantiate(
    image: Option<&Image>,
    options: *const InstanceOptions,
    buffer: *mut c_void,
    buffer_size: usize,
) -> c_int {
    // SAFETY: the caller guarantees what `fastpath_instantiate` requires.
    answer(unsafe { instantiate(image, options, buffer.cast(), buffer_size) })
}

unsafe fn instantiate(
    image: Option<&Image>,
    options: *const InstanceOptions,
    buffer: *mut u8,
    buffer_size: usize,
) -> Result<c_int, Error> {
    let image = image.ok_or(Error::INVALID)?;
    let options = if options.is_null() {
        InstanceConfig::at(Placement::at(0))
    } else {
        // SAFETY: the caller guarantees that the options can be read.
        unsafe { instance_options(options)? }
    };
    if buffer.is_null() {
        return Err(Error::INVALID);
    }
    let size = image.size();
    if buffer_size < size {
        return Err(Error::NO_SPACE);
    }
    // SAFETY: the caller guarantees the size; memory from C is valid as bytes.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, size) };
    let length = image.instantiate_into(&options, buffer).map_err(|error| match error {
        InstanceError::NoRoom { .. } => Error::NO_SPACE,
        _ => Error::PLACEMENT,
    })?;
    buffer[length..].fill(0);
    Ok(size as c_int)
}

unsafe fn instance_options(options: *const InstanceOptions) -> Result<InstanceConfig, Error> {
    // SAFETY: the caller guarantees that the options begin with their size.
    let options = unsafe { take(options)? };
    let unknown = options.flags & !(INSTANCE_NO_CLOCKS | INSTANCE_CPU_FEATURES) != 0;
    let functions = options.kernel_functions;
    let count = options.kernel_function_count as usize;
    if unknown || (functions.is_null() && count > 0) {
        return Err(Error::INVALID);
    }
    let mut kernel = KernelFunctions::NONE;
    for index in 0..count {
        // SAFETY: the caller guarantees that `count` functions and their names can be read.
        let (name, address) = unsafe {
            let function = functions.add(index).read();
            (text(function.name), function.address)
        };
        // A name that no vDSO has would be ignored silently.
        let name = name
            .filter(|name| KernelFunctions::is_known(name))
            .ok_or(Error::INVALID)?;
        kernel = kernel.with(name, address);
    }
    let cpu = if options.flags & INSTANCE_CPU_FEATURES != 0 {
        CpuFeatures {
            rdtscp: options.cpu_features & CPU_RDTSCP != 0,
            cntvctss: options.cpu_features & CPU_CNTVCTSS != 0,
            fence: options.cpu_features & CPU_FENCE != 0,
        }
    } else {
        CpuFeatures::of_this_cpu()
    };
    Ok(InstanceConfig {
        placement: Placement {
            address: options.address,
            page_offset: options.page_offset,
        },
        kernel,
        cpu,
        serve_clocks: options.flags & INSTANCE_NO_CLOCKS == 0,
    })
}

unsafe fn text<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that it is terminated by 0.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}
