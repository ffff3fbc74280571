//! The messages on the wire: fixed sizes, little-endian. `include/fastpath-protocol.h` describes what each field means.

use std::ffi::CStr;

/// Path of the daemon's socket, unless the environment variable [`SOCKET_VARIABLE`] names another.
pub const SOCKET: &str = "/run/fastpath/fastpathd.sock";
/// Environment variable with another path of the socket.
pub const SOCKET_VARIABLE: &str = "FASTPATH_SOCKET";
/// The first eight bytes of every message.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fastpath");
/// Version of this protocol.
pub const VERSION: u32 = 1;
/// [`Request::flags`]: a pidfd travels with the request.
pub const WITH_PROCESS: u32 = 1;
/// [`Request::flags`]: a mailbox of the client travels with the request, after the pidfd.
pub const WITH_MAILBOX: u32 = 2;
/// [`Request::flags`]: the client reads the page by its own code (`fastpath-clock.h`). The page's mappings are named
/// [`CLOCK_NAME`], so the process is not taken for one whose vDSO is redirected.
pub const FOR_CLOCK: u32 = 4;
/// Name of the memory of such a page.
pub const CLOCK_NAME: &CStr = c"fastpath-clock";
/// The same in /proc/PID/maps.
pub const CLOCK_MAPPED_NAME: &str = "/memfd:fastpath-clock";
/// Size of the address space that a client reserves for a region, in bytes.
pub const REGION_ROOM: u32 = 1 << 19;
/// Most sections of a region.
pub const SECTIONS: usize = 8;
/// Size of an answer's sentence, with the 0 at its end, in bytes.
pub const SENTENCE: usize = 256;
/// Largest text behind an answer, in bytes.
pub const TEXT: usize = 24 << 10;
/// Largest patch, in bytes.
pub const PATCH_BYTES: usize = 1024;

/// Defines an enumeration of the protocol's numbers.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$of])* $variant = $number),+
        }

        impl $name {
            /// All variants.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// Returns the variant of a number.
            pub fn from_number(number: u32) -> Option<$name> {
                Self::ALL.iter().copied().find(|one| *one as u32 == number)
            }
        }
    };
}

numbered! {
    /// The operation that a client requests.
    Operation {
        /// A page for a process.
        Page = 1,
        /// All that is needed to redirect the peer's own vDSO to an image of ours.
        Prepare = 2,
        /// The state of the publisher, and the pages that the peer may see.
        Status = 3,
        /// Attach a process and its descendants.
        Attach = 5,
    }
}

numbered! {
    /// Reason why a request was refused.
    Code {
        /// It was not.
        Ok = 0,
        /// Not a request.
        Malformed = 1,
        /// A request of another version.
        Version = 2,
        /// Another user's process.
        Denied = 3,
        /// Every requested clock is fast by the kernel's own path.
        Nothing = 4,
        /// The counter of this host cannot be believed.
        Counter = 5,
        /// Not a process, or not a vDSO, that can be served.
        Unsupported = 6,
        /// This user has reached the limit of pages or connections.
        Limit = 7,
        /// The process has ended.
        Process = 8,
        /// An internal error of the daemon.
        Internal = 9,
        /// The policy forbids it.
        Policy = 10,
    }
}

numbered! {
    /// Contents of a part of the region.
    Source {
        /// Private memory: bytes of the plan, then zeros.
        Bytes = 1,
        /// The page, mapped shared.
        Page = 2,
        /// The mailbox, mapped shared.
        Mailbox = 3,
    }
}

/// One field of a struct: the struct's and the field's name in C, its offset and its size.
pub type Field = (&'static str, &'static str, usize, usize);

/// A value with a fixed size in a message.
trait Wire: Sized {
    const SIZE: usize;
    fn put(&self, out: &mut Vec<u8>);
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl Wire for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$integer>::from_le_bytes(*first))
            }
        }
    )+};
}

integers!(u8, u32, u64);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const SIZE: usize = N * T::SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|one| one.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut all = [T::default(); N];
        for one in &mut all {
            *one = T::take(bytes)?;
        }
        Some(all)
    }
}

/// Defines a struct of the protocol: its fields, one after the other. A test asserts that C has the same layout,
/// without padding.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident as $c:literal { $($(#[$of:meta])* $field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$of])* pub $field: $type),+
        }

        impl Wire for $name {
            const SIZE: usize = 0 $(+ <$type as Wire>::SIZE)+;

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: <$type>::take(bytes)?),+ })
            }
        }

        impl $name {
            /// Its size in bytes.
            pub const SIZE: usize = <$name as Wire>::SIZE;

            /// Returns its bytes on the wire.
            pub fn bytes(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(Self::SIZE);
                self.put(&mut out);
                out
            }

            /// Parses bytes from the wire; `None` if they are shorter or longer.
            pub fn of_bytes(mut bytes: &[u8]) -> Option<$name> {
                let it = <$name as Wire>::take(&mut bytes)?;
                bytes.is_empty().then_some(it)
            }

            /// Returns every field, to be compared with C.
            pub fn fields() -> Vec<Field> {
                let mut offset = 0;
                let mut all = Vec::new();
                $(
                    all.push(($c, stringify!($field), offset, <$type as Wire>::SIZE));
                    offset += <$type as Wire>::SIZE;
                )+
                let _ = offset;
                all
            }
        }
    };
}

message! {
    /// A client's request.
    Request as "fastpathd_request" {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// An [`Operation`].
        operation: u32,
        /// [`WITH_PROCESS`], [`WITH_MAILBOX`], [`FOR_CLOCK`] or 0.
        flags: u32,
        /// A bit per clock id; 0: the slow ones.
        clocks: u32,
        /// `e_machine` of the peer's vDSO.
        machine: u32,
        /// 0.
        reserved: u32,
        /// Address of the kernel's vDSO in the peer.
        vdso: u64,
        /// Address that the peer has reserved for a region.
        region: u64,
        /// Where a status continues: [`crate::DaemonStatus::next`] of the last answer, or 0.
        after: u64,
        /// 0.
        reserved2: u64,
    }
}

message! {
    /// A part of a region.
    #[derive(Default)]
    Section as "fastpathd_section" {
        /// A [`Source`]; 0: unused.
        source: u32,
        /// Offset in the region.
        offset: u32,
        /// Size in the region.
        size: u32,
        /// Final protection: PROT_READ and so on.
        protection: u32,
        /// Offset in the plan.
        file_offset: u32,
        /// Size in the plan.
        file_size: u32,
    }
}

message! {
    /// The daemon's answer.
    Answer as "fastpathd_answer" {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// The request's operation.
        operation: u32,
        /// A [`Code`].
        error: u32,
        /// Number of descriptors with the answer.
        descriptors: u32,
        /// The clocks that the page answers.
        clocks: u32,
        /// Size of the region, in bytes.
        region_size: u32,
        /// Size of the JSON behind the answer in the same packet, in bytes.
        text_size: u64,
        /// Offset of the first patch in the plan.
        patches_offset: u32,
        /// Number of patches.
        patches: u32,
        /// The parts of the region.
        section: [Section; SECTIONS],
        /// With an error: a description for people.
        sentence: [u8; SENTENCE],
    }
}

message! {
    /// Bytes to be replaced in the peer's vDSO.
    Patch as "fastpathd_patch" {
        /// Address in the peer's vDSO.
        address: u64,
        /// Size of original and replacement.
        size: u32,
        /// 0.
        reserved: u32,
        /// The expected bytes.
        original: [u8; PATCH_BYTES],
        /// The new bytes.
        replacement: [u8; PATCH_BYTES],
    }
}

impl Request {
    /// Returns a request with nothing but its operation.
    pub fn new(operation: Operation) -> Request {
        Request {
            magic: MAGIC,
            version: VERSION,
            operation: operation as u32,
            flags: 0,
            clocks: 0,
            machine: 0,
            reserved: 0,
            vdso: 0,
            region: 0,
            after: 0,
            reserved2: 0,
        }
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8]) -> Result<(Operation, Request), RequestRefusal> {
        let malformed = |what: &str| RequestRefusal::new(Code::Malformed, what);
        // Magic and version are at the same place in every version.
        let (magic, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| malformed("not a request: too short"))?;
        if u64::from_le_bytes(*magic) != MAGIC {
            return Err(malformed("not a request of fastpath's"));
        }
        match rest.first_chunk().map(|version| u32::from_le_bytes(*version)) {
            Some(VERSION) => {}
            Some(version) => {
                return Err(RequestRefusal::new(
                    Code::Version,
                    format!(
                        "this daemon speaks version {VERSION} of the protocol, not {version}: use the fastpath that it came with"
                    ),
                ));
            }
            None => return Err(malformed("not a request: too short")),
        }
        let request =
            Request::of_bytes(bytes).ok_or_else(|| malformed("not a request: it has another length than a request"))?;
        let operation =
            Operation::from_number(request.operation).ok_or_else(|| malformed("an operation that does not exist"))?;
        let after_is_reserved = operation != Operation::Status && request.after != 0;
        let flags_are_reserved = request.flags & !(WITH_PROCESS | WITH_MAILBOX | FOR_CLOCK) != 0;
        if request.reserved != 0 || request.reserved2 != 0 || after_is_reserved || flags_are_reserved {
            return Err(malformed("what is reserved is not 0"));
        }
        Ok((operation, request))
    }
}

impl Answer {
    /// Returns an answer without contents.
    pub fn new(operation: u32) -> Answer {
        Answer {
            magic: MAGIC,
            version: VERSION,
            operation,
            error: Code::Ok as u32,
            descriptors: 0,
            clocks: 0,
            region_size: 0,
            text_size: 0,
            patches_offset: 0,
            patches: 0,
            section: [Section::default(); SECTIONS],
            sentence: [0; SENTENCE],
        }
    }

    /// Returns an answer that refuses the request.
    pub fn refusing(operation: u32, refusal: &RequestRefusal) -> Answer {
        let mut sentence = [0; SENTENCE];
        let mut end = refusal.sentence.len().min(SENTENCE - 1);
        while !refusal.sentence.is_char_boundary(end) {
            end -= 1;
        }
        sentence[..end].copy_from_slice(&refusal.sentence.as_bytes()[..end]);
        Answer {
            error: refusal.code as u32,
            sentence,
            ..Answer::new(operation)
        }
    }

    /// Parses an answer to `operation`. The error is the daemon's refusal, or a malformed answer.
    pub fn parse(bytes: &[u8], operation: Operation) -> Result<Answer, RequestRefusal> {
        let broken = || {
            RequestRefusal::new(
                Code::Malformed,
                "what answered is not fastpathd, or one of another version",
            )
        };
        let answer = Answer::of_bytes(bytes).ok_or_else(broken)?;
        if answer.magic != MAGIC {
            return Err(broken());
        }
        match Code::from_number(answer.error) {
            Some(Code::Ok) if answer.version == VERSION && answer.operation == operation as u32 => Ok(answer),
            Some(Code::Ok) => Err(broken()),
            code => Err(RequestRefusal::new(code.unwrap_or(Code::Internal), answer.sentence())),
        }
    }

    /// Returns the error's description, as far as the answer has one.
    fn sentence(&self) -> String {
        let end = self.sentence.iter().position(|byte| *byte == 0).unwrap_or(SENTENCE);
        String::from_utf8_lossy(&self.sentence[..end]).into_owned()
    }
}

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct RequestRefusal {
    /// The reason, for programs.
    pub code: Code,
    /// The reason, for people.
    pub sentence: String,
}

impl RequestRefusal {
    /// Returns a refusal.
    pub fn new(code: Code, sentence: impl Into<String>) -> RequestRefusal {
        RequestRefusal {
            code,
            sentence: sentence.into(),
        }
    }
}
