//! The messages as they travel: fixed sizes, little-endian. `include/fastpath-protocol.h` says what each field means.

/// Where the daemon listens, if the environment variable [`SOCKET_VARIABLE`] names no other place.
pub const SOCKET: &str = "/run/fastpath/fastpathd.sock";
/// Names another socket.
pub const SOCKET_VARIABLE: &str = "FASTPATH_SOCKET";
/// The first eight bytes of every message.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fastpath");
/// Of this protocol.
pub const VERSION: u32 = 1;
/// [`Request::flags`]: a pidfd travels with it.
pub const WITH_PROCESS: u32 = 1;
/// [`Request::flags`]: a mailbox of the client's own travels with it, after the pidfd.
pub const WITH_MAILBOX: u32 = 2;
/// So much room a client keeps for a region.
pub const REGION_ROOM: u32 = 65536;
/// Sections of a region at most.
pub const SECTIONS: usize = 8;
/// Bytes of an answer's sentence, with the 0 at its end.
pub const SENTENCE: usize = 256;
/// Bytes of the text behind an answer at most.
pub const TEXT: usize = 24 << 10;
/// Bytes of a patch at most.
pub const PATCH_BYTES: usize = 24;

/// A number of the protocol with a name.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$of])* $variant = $number),+
        }

        impl $name {
            /// Each of them.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// What a number stands for.
            pub fn from_number(number: u32) -> Option<$name> {
                Self::ALL.iter().copied().find(|one| *one as u32 == number)
            }
        }
    };
}

numbered! {
    /// What a client wants.
    Operation {
        /// A page for a process.
        Page = 1,
        /// All that it takes to lead the peer's own vDSO to an image of ours.
        Prepare = 2,
        /// Who publishes, and the pages that the peer may see.
        Status = 3,
        /// A process's pages shall answer nothing any more.
        Withdraw = 4,
    }
}

numbered! {
    /// Why there is nothing in an answer.
    Code {
        /// There is something in it.
        Ok = 0,
        /// Not a request.
        Malformed = 1,
        /// A request of another version.
        Version = 2,
        /// Another user's process.
        Denied = 3,
        /// Every clock that was asked for is fast by the kernel's own path.
        Nothing = 4,
        /// The counter of this host cannot be believed.
        Counter = 5,
        /// Not a process, or not a vDSO, that can be served.
        Unsupported = 6,
        /// This user has as many pages or connections as one may have.
        Limit = 7,
        /// There is no such process any more.
        Process = 8,
        /// The daemon's own trouble.
        Internal = 9,
        /// The policy says never.
        Policy = 10,
    }
}

numbered! {
    /// What a part of the region is made of.
    Source {
        /// Bytes of the plan, and zeros behind them: private memory.
        Bytes = 1,
        /// The page, mapped shared.
        Page = 2,
        /// The mailbox, mapped shared.
        Mailbox = 3,
    }
}

/// Where one field of a struct lies: its struct and name in C, its offset and size.
pub type Field = (&'static str, &'static str, usize, usize);

/// A value that lies in a message as so many bytes.
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

/// A struct that travels: its fields, one after the other. The test asserts that C lays it out so, without a gap.
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
            /// Bytes that it takes.
            pub const SIZE: usize = <$name as Wire>::SIZE;

            /// As it travels.
            pub fn bytes(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(Self::SIZE);
                self.put(&mut out);
                out
            }

            /// What travelled. `None`: it is shorter or longer.
            pub fn of_bytes(mut bytes: &[u8]) -> Option<$name> {
                let it = <$name as Wire>::take(&mut bytes)?;
                bytes.is_empty().then_some(it)
            }

            /// Every field, for C to agree.
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
    /// What a client says.
    Request as "fastpathd_request" {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// An [`Operation`].
        operation: u32,
        /// [`WITH_PROCESS`], [`WITH_MAILBOX`] or 0.
        flags: u32,
        /// A bit per clock id; 0: those that are slow.
        clocks: u32,
        /// `e_machine` of the peer's vDSO.
        machine: u32,
        /// 0.
        reserved: u32,
        /// Where the kernel's vDSO is in the peer.
        vdso: u64,
        /// Where the peer has room for a region.
        region: u64,
        /// Where a status goes on: what the last answer's [`crate::Status::next`] says, or 0.
        after: u64,
        /// 0.
        reserved2: u64,
    }
}

message! {
    /// A part of a region.
    #[derive(Default)]
    Section as "fastpathd_section" {
        /// A [`Source`]; 0: not in use.
        source: u32,
        /// Where in the region.
        offset: u32,
        /// How much of the region.
        size: u32,
        /// PROT_READ and so on.
        protection: u32,
        /// Where in the plan.
        file_offset: u32,
        /// How much of the plan.
        file_size: u32,
    }
}

message! {
    /// What the daemon says.
    Answer as "fastpathd_answer" {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// The request's.
        operation: u32,
        /// A [`Code`].
        error: u32,
        /// How many travel with it.
        descriptors: u32,
        /// Those that the page answers.
        clocks: u32,
        /// Bytes of the region.
        region_size: u32,
        /// Bytes of JSON behind the answer, in the same packet.
        text_size: u64,
        /// The first patch in the plan.
        patches_offset: u32,
        /// How many patches.
        patches: u32,
        /// What the region is made of.
        section: [Section; SECTIONS],
        /// With an error: what is the matter.
        sentence: [u8; SENTENCE],
    }
}

message! {
    /// Bytes to be exchanged in the peer's vDSO.
    Patch as "fastpathd_patch" {
        /// In the peer's vDSO.
        address: u64,
        /// Of original and replacement.
        size: u32,
        /// 0.
        reserved: u32,
        /// What must stand there.
        original: [u8; PATCH_BYTES],
        /// What is to stand there.
        replacement: [u8; PATCH_BYTES],
    }
}

impl Request {
    /// A request that asks for no more than its operation.
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

    /// What somebody wants who sent these bytes; or what is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<(Operation, Request), Refusal> {
        let malformed = |what: &str| Refusal::new(Code::Malformed, what);
        // Magic and version stand at the same place in every version.
        let (magic, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| malformed("not a request: too short"))?;
        if u64::from_le_bytes(*magic) != MAGIC {
            return Err(malformed("not a request of fastpath's"));
        }
        match rest.first_chunk().map(|version| u32::from_le_bytes(*version)) {
            Some(VERSION) => {}
            Some(version) => {
                return Err(Refusal::new(
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
        let flags_are_reserved = request.flags & !(WITH_PROCESS | WITH_MAILBOX) != 0;
        if request.reserved != 0 || request.reserved2 != 0 || after_is_reserved || flags_are_reserved {
            return Err(malformed("what is reserved is not 0"));
        }
        Ok((operation, request))
    }
}

impl Answer {
    /// An answer without contents.
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

    /// An answer that says why there is none.
    pub fn refusing(operation: u32, refusal: &Refusal) -> Answer {
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

    /// What an answer to `operation` is, or why there is none.
    pub fn parse(bytes: &[u8], operation: Operation) -> Result<Answer, Refusal> {
        let broken = || {
            Refusal::new(
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
            code => Err(Refusal::new(code.unwrap_or(Code::Internal), answer.sentence())),
        }
    }

    /// What is the matter, as far as the answer says.
    fn sentence(&self) -> String {
        let end = self.sentence.iter().position(|byte| *byte == 0).unwrap_or(SENTENCE);
        String::from_utf8_lossy(&self.sentence[..end]).into_owned()
    }
}

/// Why a request gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people.
    pub sentence: String,
}

impl Refusal {
    /// One of them.
    pub fn new(code: Code, sentence: impl Into<String>) -> Refusal {
        Refusal {
            code,
            sentence: sentence.into(),
        }
    }
}
