//! Instructions of x86-64 that thunks are made of.

pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `call *%r11`
pub const CALL_R11: [u8; 3] = [0x41, 0xff, 0xd3];
/// Size of a jump in bytes.
pub const JUMP_BYTES: usize = 5;
/// Reach of a jump, less the size of a thunk and a site: if a jump reaches a thunk, the thunk's jump reaches back.
const REACH: u64 = (1 << 31) - 4096;

/// Returns `movabs $door, %r11; call *%r11`.
pub fn call_door(door: u64) -> Vec<u8> {
    [&[0x49, 0xbb][..], &door.to_le_bytes(), &CALL_R11].concat()
}

/// Returns the same for a stack with a red zone.
pub fn call_door_over_red_zone(door: u64) -> Vec<u8> {
    [
        &[0x48, 0x8d, 0x64, 0x24, 0x80][..], // lea -128(%rsp), %rsp
        &call_door(door),
        &[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0], // lea 128(%rsp), %rsp
    ]
    .concat()
}

/// Returns `jmp rel32` at `from` to `to`; `None` if it cannot reach.
pub fn jump_to(from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
    let distance = to.wrapping_sub(from + JUMP_BYTES as u64) as i64;
    let [a, b, c, d] = (distance as i32).to_le_bytes();
    (distance.unsigned_abs() < REACH).then_some([0xe9, a, b, c, d])
}
