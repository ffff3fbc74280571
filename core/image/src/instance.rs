//! The image prepared for one process.

use crate::image::{Image, PAGE_SIZE, plain_name};
use crate::kernel::KernelFunctions;
use crate::symbols;
use fastpath_isa::{CpuFeatures, Isa};

/// Addresses of an image and its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The address of the image's first byte: a multiple of 4096.
    pub address: u64,
    /// The address of the page less that of the image: a multiple of 4096, within the reach of the ISA's code.
    pub page_offset: i64,
}

impl Placement {
    /// Places an image here, with its page right below.
    pub const fn at(address: u64) -> Placement {
        Placement {
            address,
            page_offset: Image::DEFAULT_PAGE_OFFSET,
        }
    }
}

/// Settings of an instance.
#[derive(Clone, Copy, Debug)]
pub struct InstanceConfig {
    /// Where it will be mapped.
    pub placement: Placement,
    /// The functions to which it falls back.
    pub kernel: KernelFunctions,
    /// The CPU's features.
    pub cpu: CpuFeatures,
    /// Whether the clocks are read from the counter, where the page says so. If not, the names of the clock functions
    /// point directly to the kernel's, or to nothing where the process has none: the C library then makes the system
    /// call itself.
    pub serve_clocks: bool,
}

impl InstanceConfig {
    /// Returns the settings for a process without a vDSO on a CPU like this one.
    pub fn at(placement: Placement) -> InstanceConfig {
        InstanceConfig {
            placement,
            kernel: KernelFunctions::NONE,
            cpu: CpuFeatures::of_this_cpu(),
            serve_clocks: true,
        }
    }
}

/// Reason why an image cannot be instantiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// The image or the page cannot be mapped there.
    #[error("the image at {address:#x} and its page {page_offset:#x} from there must be at multiples of 4096")]
    Unaligned {
        /// The address of the image.
        address: u64,
        /// The address of the page less that of the image.
        page_offset: i64,
    },
    /// The distance is beyond the reach of the ISA's instructions, or the page overlaps the image.
    #[error("the code for {isa} cannot have its page at {page_offset:#x} from its start: {limit}")]
    Unreachable {
        /// The ISA of the code.
        isa: Isa,
        /// The address of the page less that of the image.
        page_offset: i64,
        /// The permitted distance.
        limit: &'static str,
    },
    /// A 32-bit ISA was given an address beyond 4 GiB.
    #[error("{address:#x} is no address for a program of {isa}")]
    Address {
        /// The ISA of the program.
        isa: Isa,
        /// The address of the image or of a kernel's function.
        address: u64,
    },
    /// The image is larger than the buffer.
    #[error("the image takes {needed} bytes, and there is room for {room}")]
    NoRoom {
        /// Size of the image, in bytes.
        needed: usize,
        /// Size of the buffer, in bytes.
        room: usize,
    },
}

/// The image's bytes with the addresses of one process.
#[derive(Clone, Debug)]
pub struct Instance {
    bytes: Vec<u8>,
}

impl Instance {
    /// Makes an instance in its own memory.
    pub fn new(image: &Image, options: &InstanceConfig) -> Result<Instance, InstanceError> {
        let mut bytes = vec![0; image.bytes.len()];
        image.instantiate_into(options, &mut bytes)?;
        Ok(Instance { bytes })
    }

    /// Hides the names of a function of `image`, whose instance this is: a C library then makes the system call itself, and
    /// sets errno.
    pub fn hide(&mut self, image: &Image, function: &str) {
        let named = image
            .functions
            .iter()
            .filter(|named| plain_name(named.name) == function);
        named.for_each(|named| symbols::hide(image.isa, &mut self.bytes, named.symbol_at));
    }

    /// Makes the functions for clocks ask the kernel wherever the instance of `image` is not at this address, which
    /// it was made for. Without that, an
    /// instance for x86-64 that falls back to no function works at any address, with its page. Other ISAs' images have no such code.
    pub fn pin(&mut self, image: &Image, address: u64) {
        for &at in image.page_addresses {
            // lea distance(%rip), %register; nopl (%rax)
            let Some(&[rex, _, operands, d0, d1, d2, d3, ..]) = self.bytes.get(at..at + 10) else {
                continue;
            };
            let distance = i32::from_le_bytes([d0, d1, d2, d3]);
            let there = address + at as u64 + 7;
            // movabs $address, %register
            self.bytes[at..at + 2].copy_from_slice(&[0x48 | rex >> 2 & 1, 0xb8 | operands >> 3 & 7]);
            let page = there.wrapping_add_signed(distance.into());
            self.bytes[at + 2..at + 10].copy_from_slice(&page.to_le_bytes());
        }
    }

    /// Returns the bytes to write at the address it was made for.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The functions that are redirected to the kernel's, or hidden, where the counter does not serve.
const CLOCK_FUNCTIONS: [&str; 6] = [
    "clock_gettime",
    "clock_gettime64",
    "gettimeofday",
    "time",
    "clock_getres",
    "clock_getres_time64",
];
/// The functions that are jumps to the kernel's, where it has them.
const KERNELS_OWN: [&str; 2] = ["getcpu", "time"];

impl Image {
    /// Writes an instance to the beginning of `buffer` and returns its size. Allocates nothing and keeps no reference.
    pub fn instantiate_into(&self, options: &InstanceConfig, buffer: &mut [u8]) -> Result<usize, InstanceError> {
        self.check(options)?;
        let needed = self.bytes.len();
        let room = buffer.len();
        let bytes = buffer.get_mut(..needed).ok_or(InstanceError::NoRoom { needed, room })?;
        bytes.copy_from_slice(self.bytes);

        let facts = self.isa.facts();
        let Placement { address, page_offset } = options.placement;
        for &name in facts.slots() {
            let function = options.kernel.address(name);
            let at = self.slot_at(name);
            bytes[at..at + self.word()].copy_from_slice(&function.to_le_bytes()[..self.word()]);
            let call = self.calls.iter().find(|(call, _)| *call == name);
            if let Some((_, call)) = call.filter(|_| function != 0) {
                (facts.jump_to_slot)(bytes, *call as usize, at, address);
            }
        }
        let moved = page_offset.wrapping_sub(Image::DEFAULT_PAGE_OFFSET);
        for &at in self.page_references {
            (facts.move_page_reference)(bytes, at, moved);
        }
        for &at in self.counter_reads {
            (facts.improve_counter_read)(bytes, at, options.cpu);
        }
        for function in self.functions {
            let plain = plain_name(function.name);
            let in_kernel = options.kernel.find(function.name);
            let is_redirected = !options.serve_clocks && CLOCK_FUNCTIONS.contains(&plain);
            match in_kernel {
                None if is_redirected || facts.forwarded.contains(&plain) => {
                    symbols::hide(self.isa, bytes, function.symbol_at);
                }
                Some(_) if is_redirected || KERNELS_OWN.contains(&plain) => {
                    let at = function.offset as usize + facts.landing_pad();
                    (facts.jump_to_slot)(bytes, at, self.slot_at(plain), address);
                }
                Some(kernels) if plain == "vsyscall" => {
                    let at = function.offset;
                    fastpath_isa::i386_jump(bytes, at as usize, address + at, kernels);
                }
                _ => {}
            }
        }
        Ok(needed)
    }

    /// Returns whether an instance falls back to a kernel's function for clock_gettime, and not to the system call;
    /// `None` if these bytes are no instance of this image.
    pub fn has_kernel_behind(&self, instance: &[u8]) -> Option<bool> {
        let names = self.isa.facts().slots();
        let slots = instance.get(self.slots_at..self.slots_at + names.len() * self.word())?;
        let mut of_clocks = names.iter().zip(slots.chunks_exact(self.word()));
        let is_filled = of_clocks.any(|(name, slot)| {
            matches!(*name, "clock_gettime" | "clock_gettime64") && slot.iter().any(|byte| *byte != 0)
        });
        let is_ours = instance.len() >= self.bytes.len() && crate::is_fastpath(instance);
        is_ours.then_some(is_filled)
    }

    /// Returns the size of an address, in bytes.
    fn word(&self) -> usize {
        if self.isa.is_64() { 8 } else { 4 }
    }

    /// Returns the offset of the slot of a function that has one.
    fn slot_at(&self, function: &str) -> usize {
        let index = self.isa.facts().slots().iter().position(|name| *name == function);
        self.slots_at + index.unwrap_or_else(|| panic!("{function} has no slot")) * self.word()
    }

    fn check(&self, options: &InstanceConfig) -> Result<(), InstanceError> {
        let isa = self.isa;
        let Placement { address, page_offset } = options.placement;
        let page_size = PAGE_SIZE as i64;
        if address % PAGE_SIZE as u64 != 0 || page_offset % page_size != 0 {
            return Err(InstanceError::Unaligned { address, page_offset });
        }
        let refuse = |limit| {
            Err(InstanceError::Unreachable {
                isa,
                page_offset,
                limit,
            })
        };
        if (0..self.size() as i64).contains(&page_offset) {
            return refuse("the image lies there");
        }
        let (reach, limit) = isa.facts().page_reach;
        if page_offset.unsigned_abs() > reach {
            return refuse(limit);
        }
        if !isa.is_64() {
            let functions = options.kernel.addresses().iter();
            let beyond = functions
                .chain([&address])
                .find(|&&address| address > u64::from(u32::MAX));
            if let Some(&address) = beyond {
                return Err(InstanceError::Address { isa, address });
            }
        }
        Ok(())
    }
}
