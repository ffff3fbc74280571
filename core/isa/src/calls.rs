//! The numbers of the system calls that fastpath's own code makes, watches or finds in programs.

macro_rules! system_calls {
    ($(#[$doc:meta])* $struct:ident: $($name:ident)* ; $($optional:ident)*) => {
        $(#[$doc])*
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug)]
        pub struct $struct {
            $(pub $name: u32,)*
            $(pub $optional: Option<u32>,)*
        }

        impl $struct {
            /// Returns the name and number of each call that the ISA has.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, u32)> {
                let all = [
                    $((stringify!($name), Some(self.$name)),)*
                    $((stringify!($optional), self.$optional),)*
                ];
                all.into_iter().filter_map(|(name, number)| Some((name, number?)))
            }

            /// Returns the number of a call; `None` if the ISA does not have it.
            pub fn named(&self, name: &str) -> Option<u32> {
                self.list().find(|(this, _)| *this == name).map(|(_, number)| number)
            }
        }
    };
}

// `mmap` is mmap2 on 32-bit ISAs, which counts the offset in pages. Optional are the calls that only some ISAs have:
// time, those for 64-bit seconds (32-bit ISAs), and sigreturn.
system_calls! {
    /// System call numbers, by the names of the kernel's tables.
    SystemCalls:
    adjtimex clock_adjtime clock_getres clock_gettime clock_settime clone close connect execve execveat exit_group fcntl
    futex getcpu getpid getsockopt gettid gettimeofday kill memfd_create mmap mprotect munmap openat ppoll prctl pread64
    prlimit64 read readlinkat recvmsg rt_sigaction rt_sigprocmask rt_sigreturn seccomp sendmsg setns settimeofday socket socketpair
    unshare wait4 write
    ;
    clock_adjtime64 clock_getres_time64 clock_gettime64 clock_settime64 sigreturn time
}

system_calls! {
    /// Numbers of the calls without a clock that the image for hosts answers, by the names of the kernel's tables.
    AnsweredCalls:
    getegid geteuid getgid getpgid getppid getrandom getresgid getresuid getsid getuid setfsgid setfsuid
    ;
    getpgrp
}

/// The table that newer ISAs share: include/uapi/asm-generic/unistd.h.
pub(crate) const ASM_GENERIC: SystemCalls = SystemCalls {
    fcntl: 25,
    openat: 56,
    close: 57,
    read: 63,
    write: 64,
    pread64: 67,
    ppoll: 73,
    readlinkat: 78,
    exit_group: 94,
    unshare: 97,
    futex: 98,
    clock_settime: 112,
    clock_gettime: 113,
    clock_getres: 114,
    kill: 129,
    rt_sigaction: 134,
    rt_sigprocmask: 135,
    rt_sigreturn: 139,
    prctl: 167,
    getcpu: 168,
    gettimeofday: 169,
    settimeofday: 170,
    adjtimex: 171,
    getpid: 172,
    gettid: 178,
    socket: 198,
    socketpair: 199,
    connect: 203,
    getsockopt: 209,
    sendmsg: 211,
    recvmsg: 212,
    munmap: 215,
    clone: 220,
    execve: 221,
    mmap: 222,
    mprotect: 226,
    wait4: 260,
    prlimit64: 261,
    clock_adjtime: 266,
    setns: 268,
    seccomp: 277,
    memfd_create: 279,
    execveat: 281,
    clock_adjtime64: None,
    clock_getres_time64: None,
    clock_gettime64: None,
    clock_settime64: None,
    sigreturn: None,
    time: None,
};

/// The same for the calls that the image for hosts answers.
pub(crate) const ASM_GENERIC_ANSWERED: AnsweredCalls = AnsweredCalls {
    getresuid: 148,
    getresgid: 150,
    setfsuid: 151,
    setfsgid: 152,
    getpgid: 155,
    getsid: 156,
    getppid: 173,
    getuid: 174,
    geteuid: 175,
    getgid: 176,
    getegid: 177,
    getrandom: 278,
    getpgrp: None,
};
